"""Reads the directory of the old story service: job files, batches, stories with their registry, research cards.

`docs/adopting.md` describes the form. Its HTTP fields and words are known; the names of files and folders are assumed,
and the fixtures in `tests/extensions/adopt` have that form.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nextslot.domain import FailureKind, Json, NewJob, Outcome
from nextslot.domain.job_lifecycle import CRASH_ERROR
from nextslot.errors import Invalid
from nextslot.extension_api.offline import other_database

from .old_work import (
    RUNNING_THEN,
    Found,
    Left,
    NoZone,
    OldAttempt,
    OldGroup,
    OldJob,
    OldText,
    Reading,
    known,
    ordered,
    plain,
)

FOLDERS = ("jobs", "batches", "stories", "research_cards")
REGISTRY = "story_registry.db"
TYPES = {"story_generation": "story", "research": "research"}
STATUSES = ("queued", "running", "succeeded", "failed", "cancelled", "skipped")
STORY_PARAMS = ("max_stories", "enable_dedup", "model", "target_length", "topic", "tags")
RESEARCH_PARAMS = ("topic", "tags", "model", "timeout")
# Fields of the request that are stored elsewhere, or say nothing about the work.
NOT_PARAMS = ("webhook_url", "webhook_events", "type")
NO_RETRY: Mapping[str, Json] = {"max_attempts": 0}


def read(directory: Path, reading: Reading) -> Found:
    folders = [name for name in FOLDERS if (directory / name).is_dir()]
    if not folders and not (directory / REGISTRY).is_file():
        there = ", ".join(sorted(path.name for path in directory.iterdir())[:20]) if directory.is_dir() else "nothing"
        raise Invalid(
            f"{directory} is not the directory of a story service: it needs one of {', '.join(FOLDERS)} or {REGISTRY}, "
            f"and has: {there}"
        )
    return _Reader(directory, reading).read()


class _Reader:
    def __init__(self, directory: Path, reading: Reading) -> None:
        self._directory = directory
        self._reading = reading
        self._found = Found()
        # Stories by the name of their file, until a job claims them.
        self._stories: dict[str, OldText] = {}
        self._cards: dict[str, OldText] = {}
        self._made_at: dict[str, Any] = {}

    def read(self) -> Found:
        self._read_stories()
        self._read_cards()
        jobs: dict[str, OldJob] = {}
        for job in self._jobs():
            if jobs.setdefault(job.alias, job) is not job:
                self._found.left.append(Left(job.source, f"the job {job.alias[:100]!r} has a file before this one"))
        for group in self._groups(jobs):
            self._found.groups.append(group)
            for member in group.members:
                del jobs[member.alias]
        self._found.jobs += sorted(jobs.values(), key=lambda job: (job.created_at, job.alias))
        self._found.jobs += self._without_jobs()
        return self._found

    def _files(self, folder: str, suffix: str) -> Iterator[tuple[str, Path]]:
        for path in sorted((self._directory / folder).glob(f"*{suffix}")):
            source = f"{folder}/{path.name}"
            # A link may lead to any file of this machine, and a pipe has no end.
            if path.is_symlink() or not path.is_file():
                self._found.left.append(Left(source, "is not a plain file"))
            else:
                yield source, path

    def _objects(self, folder: str, needed: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
        for source, path in self._files(folder, ".json"):
            try:
                content = json.loads(path.read_text("utf-8"))
                if not isinstance(content, dict):
                    raise Invalid(f"is a JSON {type(content).__name__}; an object is needed")
                renamed = _checked(self._reading.renamed(content))
                if missing := [name for name in needed if renamed.get(name) is None]:
                    raise Invalid(f"has no {', '.join(missing)}; it has: {', '.join(content)}; see --map")
                yield source, renamed
            except NoZone:
                raise
            except (Invalid, ValueError, RecursionError, OSError) as error:
                self._found.left.append(Left(source, f"the file {error}" if isinstance(error, Invalid) else str(error)))

    # Stories and cards.

    def _read_stories(self) -> None:
        registry = self._registry()
        for source, path in self._files("stories", ".md"):
            try:
                about = _checked(self._about(path) | registry.pop(path.name, {}))
            except Invalid as error:
                self._found.left.append(Left(source, f"its metadata {error}"))
                continue
            text = plain(path.read_text("utf-8", "replace")) or ""
            title, body = _titled(text)
            if not body.strip():
                self._found.left.append(Left(source, "the file has no text"))
                continue
            self._stories[path.name] = OldText(
                alias=str(about.get("story_id") or path.stem),
                source=_marked(source, body),
                title=plain(about.get("title") or title or path.stem, 120) or "",
                text=body,
                topic=plain(about.get("topic"), 500),
                tags=tuple(map(str, about.get("tags") or ())),
                model=str(about.get("model") or "unknown"),
            )
            self._made_at[self._stories[path.name].source] = about.get("generated_at") or about.get("created_at")
        for name, row in registry.items():
            source = f"{REGISTRY}: {row.get('story_id') or name}"
            self._found.left.append(Left(source, f"its text {name} is missing, so it cannot be compared or read"))

    def _registry(self) -> dict[str, dict[str, Any]]:
        path = self._directory / REGISTRY
        if not path.is_file():
            return {}
        with other_database(path) as database:
            tables = database.tables()
            if "stories" not in tables:
                raise Invalid(f"{REGISTRY} needs a table stories, and has: {', '.join(tables) or 'none'}")
            rows = [self._reading.renamed(row) for row in database.rows("stories")]
        if rows and not {"story_id", "file_path"} <= rows[0].keys():
            raise Invalid(f"stories in {REGISTRY} needs story_id and file_path, and has: {', '.join(rows[0])}")
        return {Path(str(row["file_path"])).name: {k: v for k, v in row.items() if v is not None} for row in rows}

    def _about(self, story: Path) -> dict[str, Any]:
        """Returns the metadata in the file beside a story."""
        try:
            beside = story.with_suffix(".json")
            found = json.loads(beside.read_text("utf-8")) if beside.is_file() and not beside.is_symlink() else None
            return self._reading.renamed(found) if isinstance(found, dict) else {}
        except (OSError, ValueError, RecursionError):
            return {}

    def _read_cards(self) -> None:
        for source, card in self._objects("research_cards", ("card_id", "title", "summary")):
            lists = {name: tuple(str(plain(one)) for one in card.get(name) or ()) for name in _LISTS}
            summary = plain(card["summary"]) or ""
            read = self._cards[Path(source).name] = OldText(
                alias=str(card["card_id"]),
                source=_marked(source, summary),
                title=plain(card["title"], 120) or "",
                text="\n".join([summary, *lists["key_concepts"], *lists["applications"]]),
                topic=plain(card.get("topic"), 500),
                tags=tuple(map(str, card.get("tags") or ())),
                model=str(card.get("model") or "unknown"),
                summary=summary,
                **lists,
            )
            self._made_at[read.source] = card.get("created_at")

    def _without_jobs(self) -> Iterator[OldJob]:
        """Yields a job for each story and card that no job wrote: a direct request made it."""
        for text in [*self._stories.values(), *self._cards.values()]:
            is_story = text.source.startswith("stories/")
            try:
                made = self._reading.time(self._made_at[text.source]) or self._reading.time(_stamp(text.alias))
                if made is None:
                    raise Invalid("when it was made is not known")
            except NoZone:
                raise
            except Invalid as error:
                self._found.left.append(Left(text.source, str(error)))
                continue
            params: dict[str, Json] = {} if text.topic is None else {"topic": text.topic}
            yield OldJob(
                alias=f"direct:{text.alias}:{text.source}",
                source=f"{text.source}: its request",
                new=NewJob(job_type="story" if is_story else "research", params=params, retry_policy=NO_RETRY),
                created_at=made,
                attempts=(OldAttempt(started_at=made, finished_at=made, outcome=Outcome.completed()),),
                has_ended=True,
                stories=(text,) if is_story else (),
                card=None if is_story else text,
            )

    # Jobs and batches.

    def _jobs(self) -> Iterator[OldJob]:
        for source, content in self._objects("jobs", ("job_id", "type", "status", "created_at")):
            try:
                yield self._job(source, content)
            except NoZone:
                raise
            except Invalid as error:
                self._found.left.append(Left(source, str(error)))

    def _job(self, source: str, old: Mapping[str, Any]) -> OldJob:
        job_type, status = TYPES.get(old["type"]), old["status"]
        if job_type is None:
            raise Invalid(f"its type is {old['type']!r}; known are {', '.join(TYPES)}")
        if status not in STATUSES:
            raise Invalid(f"its status is {status!r}; known are {', '.join(STATUSES)}")
        given = {name: value for name, value in (old.get("params") or {}).items() if name not in NOT_PARAMS}
        params, unknown = known(given, STORY_PARAMS if job_type == "story" else RESEARCH_PARAMS)
        if unknown:
            self._found.left.append(Left(source, f"parameters that stories have no more: {', '.join(unknown)}", True))
        has_ended = status != "queued"
        url = old.get("webhook_url")
        if url and has_ended:
            self._found.left.append(Left(source, "its webhook: messages of the past are not sent again", True))
        times = [self._reading.time(old.get(name)) for name in ("created_at", "started_at", "finished_at")]
        created, started, finished = ordered(times)
        # Only work that succeeded is in the library; the texts of other jobs are adopted alone.
        files = [Path(str(path)).name for path in old.get("artifacts") or ()] if status == "succeeded" else []
        stories = [self._stories.pop(name, None) for name in files]
        cards = [self._cards.pop(name, None) for name in files]
        is_cancelled = status == "cancelled" and times[1] is None
        events = old.get("webhook_events") or ["succeeded", "failed", "skipped"]
        hook: dict[str, Json] | None = {"url": url, "events": events, "format": "legacy"} if url else None
        return OldJob(
            alias=str(old["job_id"]),
            source=source,
            new=NewJob(
                job_type=job_type,
                params=params,
                retry_policy=NO_RETRY if has_ended else None,
                webhook=None if has_ended else hook,
            ),
            created_at=created,
            attempts=()
            if status == "queued" or is_cancelled
            else (OldAttempt(started_at=started, finished_at=finished, outcome=_outcome(old, status)),),
            cancelled_at=finished if status == "cancelled" else None,
            cancel_reason=plain(old.get("error"), 500),
            has_ended=has_ended,
            stories=tuple(one for one in stories if one is not None),
            card=next((one for one in cards if one is not None), None),
        )

    def _groups(self, jobs: Mapping[str, OldJob]) -> Iterator[OldGroup]:
        taken: set[str] = set()
        for source, batch in self._objects("batches", ("batch_id", "created_at")):
            named = [
                str(one)
                for one in batch.get("job_ids")
                or [one["job_id"] for one in batch.get("jobs") or () if isinstance(one, dict) and "job_id" in one]
            ]
            missing = [one for one in named if one not in jobs or one in taken]
            if missing:
                reason = f"members without a job file of their own: {', '.join(missing)}"
                self._found.left.append(Left(source, reason, is_part=len(missing) < len(named)))
            members = tuple(jobs[one] for one in named if one not in missing)
            taken.update(one.alias for one in members)
            created = self._reading.time(batch["created_at"])
            assert created is not None
            if members:
                earliest = min([created, *(one.created_at for one in members)])
                yield OldGroup(alias=str(batch["batch_id"]), source=source, created_at=earliest, members=members)


_LISTS = ("key_concepts", "applications")
_NAMES = ("job_id", "batch_id", "card_id", "story_id")
_TEXTS = ("type", "status", "error", "webhook_url", "title", "topic", "summary", "model", "created_at", "started_at",
          "finished_at", "generated_at")  # fmt: skip
_FORM: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(_NAMES, (str, int)),
    **dict.fromkeys(_TEXTS, (str,)),
    **dict.fromkeys((*_LISTS, "tags", "artifacts", "job_ids", "jobs", "webhook_events"), (list,)),
    "params": (dict,),
    "exit_code": (int,),
}


def _checked(content: dict[str, Any]) -> dict[str, Any]:
    """Returns an object of the old service; raises Invalid if a field has an unexpected form."""
    for name, kinds in _FORM.items():
        value = content.get(name)
        if value is not None and not isinstance(value, kinds):
            raise Invalid(f"has {name} as a JSON {type(value).__name__}, not {kinds[0].__name__}")
    return content


def _outcome(old: Mapping[str, Any], status: str) -> Outcome:
    error, code = plain(old.get("error"), 4000), old.get("exit_code")
    match status:
        case "succeeded":
            return Outcome.completed()
        case "skipped":
            return Outcome.skipped(error or "skipped by the old service")
        case "running":
            return Outcome.failed(FailureKind.CRASH, f"{CRASH_ERROR}: {RUNNING_THEN}")
        case "cancelled":
            return Outcome.failed(FailureKind.CANCELLED, error or "cancelled in the old service")
        case _:
            return Outcome.failed(FailureKind.ERROR, error or "failed in the old service", code)


def _titled(text: str) -> tuple[str, str]:
    """Splits the heading from the text, and drops front matter."""
    if text.startswith("---\n") and "\n---\n" in text:
        text = text.partition("\n---\n")[2].lstrip("\n")
    first, _, rest = text.partition("\n")
    return (first[2:].strip(), rest.strip()) if first.startswith("# ") else ("", text.strip())


def _marked(source: str, text: str) -> str:
    """Returns a name for a text, made of its file and its content: files of two services may have the same name."""
    return f"{source} {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _stamp(story_id: str) -> str | None:
    """Returns the time in an id such as 20260118_101500."""
    day, _, time = story_id.partition("_")
    return f"{day}T{time[:6]}" if len(day) == 8 and len(time) >= 6 and (day + time[:6]).isdigit() else None
