"""Writes webhook messages for people, in the formats of Slack, Discord and ntfy. Called by `webhook_outbox`.

Pure: an event and its content become a body. A job's text cannot mention or notify a person in a chat.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from nextslot.domain import Json

# Discord takes 2,000 characters, ntfy 4,096 bytes. What is said of a job is cut to less than a text alone: its id and
# the address where it is answered stand behind it, and are never cut.
MOST_OF_A_TEXT = 1000
MOST_OF_A_TITLE, MOST_OF_A_REASON, MOST_OF_A_QUESTION = 200, 700, 400
_SIGNS = {"completed": "✅", "failed": "❌", "failed_permanently": "❌", "skipped": "⏭️", "cancelled": "🚫",
          "stalled": "⏳", "awaiting_signal": "✋"}  # fmt: skip
_VERBS = {"failed_permanently": "failed for good", "stalled": "has been silent for long",
          "awaiting_signal": "waits for an answer"}  # fmt: skip


class ChatMessage(NamedTuple):
    """The URL of a message, and its whole body."""

    url: str
    body: Mapping[str, Json]


def chat_message(format_: str, url: str, event: str, content: Mapping[str, Json]) -> ChatMessage:
    return _FORMATS[format_](url, event, *_sentence(event, content))


def _sentence(event: str, content: Mapping[str, Json]) -> tuple[str, str]:
    """Returns a headline and details; the details may be empty."""
    what = event.rpartition(".")[2]
    verb = _VERBS.get(what, what)
    if "job" in content:
        job, run = content["job"], content.get("run") or {}
        name = job.get("title") or job["job_type"]
        silent = f"no output and no progress since {run['silent_since']}" if event == "job.stalled" else ""
        asked = _question(job, content.get("link")) if event == "job.awaiting_signal" else ""
        why = silent or run.get("error") or run.get("reason") or job.get("cancel_reason") or ""
        details = f"{asked or _short(why, MOST_OF_A_REASON)}\njob {job['job_id']} in {job['office_id']}"
        return f"{_short(name, MOST_OF_A_TITLE)} {verb}", details.strip()
    if "group" in content:
        group = content["group"]
        name = group.get("name") or group["group_id"]
        details = f"{group['succeeded']} of {group['members']} succeeded"
        return _short(f"group {name}: {str(group['status']).lower()}"), details
    if "schedule" in content:
        reason = (content.get("occurrence") or {}).get("reason") or ""
        return _short(f"schedule {content['schedule'].get('name')} skipped an occurrence"), _short(str(reason))
    if "direct" in content:
        direct = content["direct"]
        return _short(f"{direct['job_type']} {verb}"), _short(str(direct.get("error") or direct.get("reason") or ""))
    return f"nextslot: {event}", ""


def _question(job: Mapping[str, Json], link: Json) -> str:
    """Returns a job's question and where to answer it: a link to a page that shows the question first, or the
    command.
    """
    wait = job.get("awaiting") or {}
    how = link or f"nextslot approve {job['job_id']}"
    return f"{_short(wait.get('question') or wait.get('name') or '', MOST_OF_A_QUESTION)}\n{how}"


def _slack(url: str, event: str, headline: str, details: str) -> ChatMessage:
    def plain(text: str) -> str:
        # Slack reads <!channel> as a mention.
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    text = f"{_sign(event)} *{plain(headline.replace('*', ''))}*" + (f"\n{plain(details)}" if details else "")
    return ChatMessage(url, {"text": text, "unfurl_links": False})


def _discord(url: str, event: str, headline: str, details: str) -> ChatMessage:
    text = f"{_sign(event)} **{headline.replace('*', '')}**" + (f"\n{details}" if details else "")
    return ChatMessage(url, {"content": text[:2000], "allowed_mentions": {"parse": []}})


def _ntfy(url: str, event: str, headline: str, details: str) -> ChatMessage:
    """Writes a message for ntfy: JSON for the server's root that names the topic. The topic is the end of the URL."""
    parts = urlsplit(url)
    root, _, topic = parts.path.rstrip("/").rpartition("/")
    priority = 4 if event.rpartition(".")[2].startswith("failed") else 3
    body = {"topic": unquote(topic), "title": headline, "message": details or headline, "priority": priority}
    return ChatMessage(urlunsplit((parts.scheme, parts.netloc, f"{root}/", parts.query, "")), body)


_FORMATS: Mapping[str, Callable[[str, str, str, str], ChatMessage]] = {
    "slack": _slack,
    "discord": _discord,
    "ntfy": _ntfy,
}


def _sign(event: str) -> str:
    return _SIGNS.get(event.rpartition(".")[2], "🔔")


def _short(text: str, most: int = MOST_OF_A_TEXT) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
