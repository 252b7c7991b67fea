"""The results of tools: short forms of the API's JSON, each with a sentence that says how to get the rest."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import orjson

# An agent pays for each character that it reads.
LONGEST_TITLE = 200
LONGEST_TEXT = 2_000
LONGEST_LOG = 8_000
LONGEST_RESULT = 4_000

Json = Mapping[str, Any]

_JOB = (
    "job_id", "job_type", "status", "title", "office_id", "priority", "attempt", "scheduled_for", "created_by",
    "created_at", "started_at", "finished_at", "cancel_requested_at", "permanently_failed",
)  # fmt: skip
_RUN = ("run_id", "status", "started_at", "finished_at", "failure_kind", "exit_code")
_QUEUED = ("place", "expected_start", "expected_end")


def of_job(job: Json, *more: str) -> dict[str, Any]:
    """Returns the fields of a job that are not empty or default."""
    shown = _picked(job, (*_JOB, *more))
    return shown | ({"title": cut(shown["title"], LONGEST_TITLE)} if "title" in shown else {})


def of_listed(job: Json) -> dict[str, Any]:
    """Returns the fields of a job in a list, with what it asks, if it waits for an answer."""
    asked = of_awaiting(job)
    return of_job(job) | ({} if asked is None else {"awaiting": asked})


def of_awaiting(job: Json) -> str | None:
    """Returns which answer a job waits for; None if it waits for none."""
    wait = job.get("awaiting")
    if wait is None:
        return None
    question = f" ({cut(wait['question'], 500)})" if wait["question"] else ""
    return f"waits for the signal {wait['name']!r}{question}; a person can run `nextslot approve {job['job_id']}`"


def of_queued(job: Json) -> dict[str, Any]:
    return of_job(job, *_QUEUED)


def of_detail(job: Json) -> dict[str, Any]:
    """Returns a job with its run: the result or the error, cut, and where its log and files are."""
    shown = of_job(job)
    if (asked := of_awaiting(job)) is not None:
        shown["awaiting"] = asked
    if job.get("params"):
        shown["params"] = bounded(job["params"], LONGEST_TEXT, f"nextslot://jobs/{job['job_id']}")
    run = job.get("run")
    if run is not None:
        shown["run"] = _picked(run, _RUN)
        if run.get("error"):
            shown["run"]["error"] = cut(str(run["error"]), LONGEST_TEXT)
        if run.get("result") is not None:
            shown["run"]["result"] = bounded(run["result"], LONGEST_RESULT, f"nextslot://jobs/{job['job_id']}")
        names = [quote(one["name"]) for one in run.get("artifacts") or ()]
        if names:
            shown["artifacts"] = [f"nextslot://jobs/{job['job_id']}/artifacts/{name}" for name in names[:20]]
    if len(job.get("chain") or ()) > 1:
        shown["attempts"] = [_picked(one, ("job_id", "status")) for one in job["chain"][-10:]]
    return shown


def of_why(why: Json) -> dict[str, Any]:
    """Returns the reasons as sentences, and the expected times."""
    shown = {
        "status": why["status"],
        "reasons": [cut(one["text"], 500) for one in why["reasons"][:10]],
        "codes": [one["code"] for one in why["reasons"][:10]],
        "jobs_ahead": why["ahead"],
        **_picked(why, ("expected_start", "expected_end")),
        "confidence": why["confidence"],
    }
    if why["status"] in ("QUEUED", "WAITING") and why.get("expected_start") is None:
        shown["note"] = "there is no forecast; the reasons say what has to happen first"
    return shown


def of_schedule(schedule: Json) -> dict[str, Any]:
    names = ("schedule_id", "name", "cron_expression", "cron_words", "timezone", "enabled", "next_trigger_at")
    return _picked(schedule, (*names, "last_triggered_at", "template_id", "office_id"))


def of_job_type(one: Json, is_whole: bool) -> dict[str, Any]:
    schema = one.get("params_schema") or {}
    if is_whole:
        return dict(one)
    required = list(schema.get("required") or ())
    optional = [name for name in schema.get("properties") or {} if name not in required]
    shown = {"job_type": one["job_type"], "required": required, "optional": optional[:30]}
    return shown | ({"resources": one["resources"]} if one.get("resources") else {})


def page(items: Iterable[Any], rest: str | None, **more: Any) -> dict[str, Any]:
    return {"items": list(items), **more, **({"more": rest} if rest else {})}


def bounded(value: Any, most: int, where: str) -> Any:
    """Returns a JSON value, or the beginning of its text if it is long."""
    text = orjson.dumps(value).decode()
    return value if len(text) <= most else f"{text[:most]}… (cut; all {len(text):,} characters: read {where})"


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… (cut: {len(text):,} characters in all)"


def tail(text: str, most: int) -> tuple[str, bool]:
    """Returns the last lines that fit, and whether there are more before them."""
    if len(text) <= most:
        return text, False
    kept = text[-most:]
    _, newline, lines = kept.partition("\n")
    return (lines if newline and lines else kept), True


def _picked(value: Json, names: Sequence[str]) -> dict[str, Any]:
    return {name: value[name] for name in names if value.get(name) not in (None, False, "", [])}
