"""Writes docs/http.md from the OpenAPI document of a server with all extensions.

    uv run python scripts/make_http_reference.py

tests/docs/test_http_reference.py fails while the page is another one, and sends every example to a real server.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nextslot import Scheduler, errors, extension_api
from nextslot.server import problems
from nextslot.server.app import describe

PAGE = Path(__file__).parents[1] / "docs/http.md"

Schema = dict[str, Any]
Operation = dict[str, Any]

# What an operation does that has no sentence in the document.
SENTENCES = {
    ("POST", "/api/queue/resume"): "Ends a pause: jobs start there again.",
    ("GET", "/api/job-runs/{run_id}"): "Shows a run, while it runs with its progress.",
    ("POST", "/api/job-templates"): "Makes a template of a job, or of a group.",
    ("POST", "/api/schedules"): "Makes a schedule of a template.",
    ("GET", "/api/webhooks/{webhook_id}"): "Shows a subscription, without its secret.",
    ("GET", "/api/webhook-deliveries/{delivery_id}"): "Shows a delivery with all its attempts.",
    ("GET", "/api/offices/{office_id}"): "Shows an office, and how much waits and runs in it.",
    ("GET", "/api/offices/{office_id}/jobs/{job_id}"): "Shows a job of an office with its executions.",
    ("POST", "/api/offices/{office_id}/jobs/{job_id}/cancel"): "Cancels a job of an office. It is not retried.",
    ("GET", "/api/offices/{office_id}/scheduler/config"): "Shows the settings of an office.",
}

# What the parameters mean that have no description in the document.
PARAMETERS = {
    "batch_id": "the id of the batch, which `POST /jobs/batch/trigger` has answered",
    "card_id": "the id of the research card",
    "count": "how many occurrences",
    "created_after": "only jobs made after this time",
    "created_before": "only jobs made before this time",
    "cron_expression": "the [expression](schedules.md)",
    "delivery_id": "the id of the delivery",
    "direct_id": "the id of the direct request",
    "event": "only deliveries of these events",
    "fingerprint": "the fingerprint of the failures",
    "finished_after": "only what ended after this time",
    "finished_before": "only what ended before this time",
    "group_id": "the id of the group",
    "job_id": "the id of the job",
    "job_type": "only of these job types",
    "key_id": "the id of the key",
    "limit": "how many items the page has at most",
    "model": "the name of the model",
    "name": "the name",
    "node_id": "the name of the node",
    "office_id": "the id of the office",
    "offset": "the byte from which on the log is returned",
    "retry_of": "only retries of these jobs",
    "role": "the role",
    "run_id": "the id of the run",
    "schedule_id": "the id of the schedule",
    "started_after": "only what started after this time",
    "started_before": "only what started before this time",
    "status": "only what has one of these statuses",
    "story_id": "the id of the story",
    "tag": "only what has this tag",
    "task_id": "only jobs with this task",
    "template_id": "the id of the template",
    "timezone": "the time zone of the expression",
    "type": "only of these types",
    "webhook_id": "the id of the subscription",
}

# What the fields of bodies mean that have no description in the document: of one value, or of all.
FIELDS = {
    "BatchBody.jobs": "the jobs; their order is that of the answer",
    "BatchTrigger.jobs": "the jobs of the batch",
    "BatchJob.type": "what it makes",
    "ConfigBody.maxRetries": "how often a job of the office is retried by itself",
    "ConfigBody.retryBackoff": "how the pause grows from retry to retry",
    "DirectBody.params": "the parameters of the work",
    "DirectBody.timeout_seconds": "how long the work may take; else the timeout of its type, else an hour",
    "DirectBody.webhook": "where its end is reported",
    "GroupBody.jobs": "the members, all of one office; their order is that of a sequential group",
    "GroupBody.name": "a name for people",
    "GroupBody.on_failure": "what happens to the other members when one has failed",
    "GroupBody.params": "parameters that replace those of the template, by name",
    "GroupBody.webhook": "where the end of the group is reported",
    "KeyBody.name": "the name of the key, which the audit log shows",
    "MoveBody.after": "the id of the job behind which it is put",
    "MoveBody.before": "the id of the job in front of which it is put",
    "MoveBody.to": "the front or the back of the queue",
    "OfficeBody.webhook": "where the events of its jobs are reported",
    "OfficeChange.webhook": "where the events of its jobs are reported",
    "OfficeJobsBody.jobs": "the jobs of the graph",
    "OfficeJobBody.priority": "lower goes first",
    "OfficeJobBody.role": "who does it",
    "ParkBody.name": "the name of the signal, without a slash",
    "PriorityBody.priority": "lower goes first",
    "RoleBody.timeout_ms": "how many milliseconds a job of the role may take",
    "ScopeBody.job_type": "the job type that is paused or resumed",
    "ScopeBody.office_id": "the office that is paused or resumed",
    "ScopeBody.resource": "the resource that is paused or resumed",
    "SignalBody.answer": "whether what waits may go on",
    "SubscriptionBody.office_id": "the office whose events are sent; none: those of all offices",
    "SubscriptionPatch.office_id": "the office whose events are sent; null: those of all offices",
    "TriggerBody.params": "parameters that replace those of the template and the schedule, by name",
    "RerunBody.params": "the parameters of the new job; none: those of the ended one",
    "affinity": "what its resource should have [loaded](how-to.md#a-model-that-takes-long-to-load)",
    "awaiting_signal": "only jobs that wait for nothing but an answer, or only others",
    "backoff": "how the pause grows from retry to retry",
    "base_delay_seconds": "the pause before the first retry",
    "batch_jobs": "jobs that one request may name",
    "body_bytes": "bytes of request bodies at a time",
    "cancel_mode": "whether a cancelled job that runs is interrupted or finishes",
    "created_after": "only jobs made after this time",
    "created_before": "only jobs made before this time",
    "cron_expression": "the [expression](schedules.md)",
    "deadline_seconds": "how long it waits; none: for ever",
    "delivery_places": "webhook attempts in progress; 0: half of what the others leave",
    "description": "a text for people",
    "direct_callers": "direct requests that wait; 0: as `[limits] direct_waiting` says",
    "enable_dedup": "whether work that is like earlier work is refused",
    "enabled": "whether it makes jobs",
    "fingerprint": "only jobs that failed with these fingerprints",
    "finished_after": "only jobs that ended after this time",
    "finished_before": "only jobs that ended before this time",
    "genre": "the genre of the story",
    "group_id": "only members of these groups",
    "include_running": "whether running jobs are cancelled too",
    "interrupt": "whether a running job is interrupted; none: as its office says",
    "jitter": "the part of the pause that chance may add or take away",
    "job_ids": "the ids of the jobs, in their new order",
    "job_type": "the job type",
    "job_types": "the job types that it may use",
    "lanes": "different combinations of job type, role and resources that are ready",
    "language": "the language of the story",
    "limit_keys": "[of the work with the same key](how-to.md#one-at-a-time-for-each-customer) so much runs at once",
    "max_attempts": "automatic retries; 0: none",
    "max_concurrent_jobs": "how many of its jobs run at once",
    "max_delay_seconds": "the longest pause",
    "max_stories": "how many stories it makes at most",
    "name": "its name",
    "office_id": "the office",
    "on_dependency_failure": "what happens if a prerequisite fails; none: as the office says",
    "on_deadline": "the answer if nobody answers in time",
    "own_resources": "whether its keys may name resources that nobody has declared",
    "param_overrides": "parameters that replace those of the template, by name",
    "params": "the parameters of the job",
    "priority": "higher goes first",
    "q": "words of the title or the error",
    "question": "what is asked, for people",
    "queued_jobs": "jobs that have not ended",
    "reason": "why, for people",
    "requests_per_second": "requests in a second",
    "research_card": "the id of a card that the story is based on",
    "resource": "the name of the resource",
    "resources": "what it takes besides the resources of its type: names, or names with units",
    "retry_of": "only retries of these jobs",
    "retry_on": "the kinds of failure that are retried",
    "retry_policy": "parts that replace those of the policy of its type and its office",
    "role": "who does it: a limit of its office",
    "schedule_id": "only jobs of these schedules",
    "scopes": "what it may do",
    "stall_timeout_seconds": "without output and progress for that long it is a timeout",
    "status": "only jobs that have one of these statuses",
    "stored_bytes": "bytes of logs and artifacts that are kept",
    "streams": "open streams and requests that wait for work",
    "tags": "words by which it is found",
    "task_id": "a label for what belongs together",
    "temperature": "how much chance the model uses",
    "template_id": "the id of the template",
    "timeout_ms": "how many milliseconds it may take",
    "timeout_seconds": "how long it may take; none: as its type says, else its office",
    "timezone": "the time zone of the expression, such as `Europe/Berlin`",
    "title": "a text for people",
    "topic": "what it is about",
    "urgent": "before everything else in its office",
    "url": "where it is sent",
    "webhook": "where the ends of its runs are reported",
    "webhook_events": "which ends are reported",
    "webhook_url": "where its end is reported",
}

# What the fields of answers mean that have no description in the document and mean the same wherever they are.
ANSWERS = {
    "affinity": "what its resource should have loaded",
    "artifacts": "the files that it made",
    "awaiting": "the signal that it waits for",
    "attempts": "its attempts, from the first on",
    "batch_id": "the id of the batch",
    "cancel_mode": "what a cancel does while it runs",
    "cancel_reason": "why it was cancelled",
    "card_id": "the id of the research card",
    "characters": "how many characters its text has",
    "code": "a word for programs",
    "created_by": "who made it: the name of a key, or a label",
    "cron_expression": "the [expression](schedules.md)",
    "delivery_id": "the id of the delivery",
    "depends_on": "the ids of its prerequisites",
    "description": "a text for people",
    "direct_id": "the id of the direct request",
    "disabled_reason": "why it was disabled",
    "duration_seconds": "how long it took",
    "enabled": "whether it is on",
    "error": "what went wrong, for people",
    "event": "the type of the event",
    "events": "the types of events that are sent",
    "exit_code": "the exit code of its process",
    "failure_kind": "the [kind of the failure](lifecycle.md#failure-kinds)",
    "group_id": "the id of the group",
    "host": "the name of the machine",
    "items": "what was found, or made",
    "job_id": "the id of the job",
    "job_ids": "the ids of the jobs",
    "job_type": "the job type",
    "key_id": "the id of the key",
    "limit_keys": "the keys by which limits count it",
    "log_path": "its log, relative to the data directory",
    "message": "a sentence for people",
    "model": "the model",
    "next_cursor": "the `cursor` of the next page; null: this is the last",
    "node_id": "the name of the node",
    "office_id": "the office",
    "on_dependency_failure": "what happens if a prerequisite fails",
    "param_overrides": "parameters that replace those of the template",
    "params": "its parameters",
    "params_snapshot": "its parameters as they were at its start",
    "permanently_failed": "whether its last attempt has failed",
    "pid": "the id of the process",
    "progress": "how far it is",
    "ran_seconds": "how long it ran",
    "reason": "why",
    "resource": "the name of the resource",
    "resources": "what it takes: names with units",
    "retry_of": "the id of the job that it retries",
    "retry_policy": "how it is retried",
    "role": "who does it",
    "run_id": "the id of the run",
    "schedule_id": "the id of the schedule",
    "seq": "the number of the event, which is never used again",
    "session_id": "the id of its session",
    "size": "how many bytes it has",
    "status": "its status",
    "stall_timeout_seconds": "how long it may be without output and progress",
    "story_id": "the id of the story",
    "tags": "words by which it is found",
    "task_id": "a label for what belongs together",
    "template_id": "the id of the template",
    "timeout_ms": "how many milliseconds it may take",
    "timeout_seconds": "how long it may take",
    "timezone": "the time zone of the expression",
    "title": "a text for people",
    "topic": "what it is about",
    "unique_key": "a key that only one job may have that has not ended",
    "url": "where it is sent",
    "version": "the version of nextslot",
    "waited_seconds": "how long it waited",
    "webhook": "where its events are reported",
    "webhook_id": "the id of the subscription",
    "webhook_url": "where its end is reported",
    "words": "how many words its text has",
    "worker_id": "who ran it; it begins with the name of the node",
}

# Paths in the examples: what replaces a parameter that is not simply an id of the reader's, such as JOB_ID.
PLACES = {
    ("POST", "/api/direct/{name}"): {"name": "thumbnail"},
    ("GET", "/api/direct/{name}"): {"name": "DIRECT_ID"},
    "/api/job-runs/{run_id}/artifacts/{name}": {"name": "cover.png"},
    "/api/direct/{direct_id}/artifacts/{name}": {"name": "cover.png"},
    "/api/jobs/{job_id}/signals/{name}": {"name": "release"},
    "/api/job-templates/by-name/{name}": {"name": "nightly"},
    "/api/schedules/by-name/{name}": {"name": "nightly"},
    "/api/offices/{office_id}/roles/{role}": {"role": "FE"},
    "/v1/models/{model}": {"model": "smollm2:135m"},
}
QUERIES = {
    "/api/jobs": "status=QUEUED,RUNNING&limit=20",
    "/api/queue": "office_id=OFFICE_ID",
    "/api/job-runs": "job_id=JOB_ID",
    "/api/job-runs/{run_id}/log": "tail=20",
    "/api/schedules": "office_id=OFFICE_ID",
    "/api/schedules/preview": "cron_expression=0+6+*+*+mon-fri&timezone=Europe/Berlin",
    "/api/schedules/{schedule_id}/upcoming": "count=5",
    "/api/webhook-deliveries": "webhook_id=WEBHOOK_ID",
    "/api/events": "job_id=JOB_ID",
    "/api/stats/series": "step=3600&office_id=OFFICE_ID",
    "/api/failures": "job_type=thumbnail",
    "/api/stories": "q=tides",
    "/api/research-cards": "q=tides",
    "/api/offices/{office_id}/jobs": "status=pending",
}
_JOB = {"job_type": "thumbnail", "params": {"path": "cover.png"}}
_ASKED = [{"role": "user", "content": "Say hello in one word."}]
_HOOK = "https://example.org/hook"
_SCHEDULE = {"template_id": "TEMPLATE_ID", "cron_expression": "0 6 * * mon-fri", "timezone": "Europe/Berlin"}
# The bodies of the examples, by the name of the value, or by the path.
BODIES: dict[str, Any] = {
    "JobBody": {**_JOB, "priority": 5, "title": "The cover of the spring issue"},
    "BatchBody": {"jobs": [{**_JOB, "key": "small"}, {**_JOB, "depends_on": ["small"]}]},
    "BulkCancelBody": {"office_id": "OFFICE_ID", "status": "QUEUED", "reason": "the order was withdrawn"},
    "BulkRetryBody": {"job_type": "thumbnail", "finished_after": "2026-11-15T06:30:00Z"},
    "ChangeBody": {"priority": 9, "title": "The cover of the summer issue"},
    "jobs.CancelBody": {"reason": "the order was withdrawn"},
    "offices.CancelBody": {"reason": "the order was withdrawn", "interrupt": True},
    "MoveBody": {"to": "front"},
    "RerunBody": {"priority": 9},
    "OrderBody": {"job_ids": ["JOB_ID"]},
    "ScopeBody": {"office_id": "OFFICE_ID"},
    "ReleaseBody": {"resource": "RESOURCE"},
    "RetryBody": {"priority": 9},
    "CheckpointBody": {"value": {"pages_done": 12}},
    "ParkBody": {"name": "release", "question": "May version 7 go live?", "deadline_seconds": 3600},
    "SignalBody": {"answer": "approve", "payload": {"version": 7}},
    "TemplateBody": {"name": "nightly thumbnails", **_JOB},
    "TemplatePatch": {"priority": 3, "description": "Makes the thumbnails of the day"},
    "TemplatePut": _JOB,
    "ScheduleBody": {"name": "every working day at six", **_SCHEDULE},
    "SchedulePatch": {"cron_expression": "30 6 * * mon-fri", "enabled": True},
    "SchedulePut": _SCHEDULE,
    "TriggerBody": {"priority": 9},
    "GroupBody": {"name": "spring issue", "mode": "sequential", "on_failure": "stop", "jobs": [_JOB, _JOB]},
    "DirectBody": {"params": {"path": "cover.png"}, "wait_timeout_seconds": 60},
    "SubscriptionBody": {"url": _HOOK, "events": ["job.run.completed", "job.run.failed"]},
    "SubscriptionPatch": {"events": ["job.run.failed"], "enabled": True},
    "KeyBody": {"name": "the web shop", "scopes": ["submit"], "office_id": "OFFICE_ID"},
    "RotateBody": {"overlap_seconds": 3600},
    "QuotasPatch": {"queued_jobs": 1000, "requests_per_second": 20},
    "DrainBody": {"undo": False},
    "FailureChange": {"muted": True, "note": "the provider knows of it"},
    "StoryTrigger": {"max_stories": 1, "target_length": 1500},
    "ResearchTrigger": {"topic": "how tides turn turbines", "tags": ["energy"]},
    "BatchTrigger": {"jobs": [{"type": "research", "topic": "how tides turn turbines"}, {"type": "story"}]},
    "OfficeBody": {"office_id": "shop", "name": "The web shop"},
    "OfficeChange": {"name": "The web shop", "on_dependency_failure": "cancel"},
    "OfficeJobsBody": {
        "task_id": "T-7",
        "jobs": [
            {"key": "draw", "description": "Draw the page", "role": "FE", "job_type": "thumbnail"},
            {
                "description": "Check the page",
                "role": "QA",
                "job_type": "thumbnail",
                "depends_on": ["draw"],
            },
        ],
    },
    "CancelAllBody": {"task_id": "T-7", "include_running": False},
    "PriorityBody": {"priority": 1},
    "ConfigBody": {"maxConcurrentJobs": 4, "maxRetries": 1},
    "RoleBody": {"timeout_ms": 600000},
    "StoryBody": {"topic": "a lighthouse in winter", "target_length": 1500},
    "ResearchBody": {"topic": "how tides turn turbines", "tags": ["energy"]},
    "/mcp": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
    "/v1/chat/completions": {"model": "smollm2:135m", "messages": _ASKED},
    "/v1/completions": {"model": "smollm2:135m", "prompt": "The tide turns"},
    "/v1/embeddings": {"model": "smollm2:135m", "input": "The tide turns"},
}

# The codes that only HTTP has, with their status, and what a caller does about each code.
STATUSES = {
    "malformed": 400, "unauthorized": 401, "forbidden_host": 403, "forbidden_origin": 403, "method_not_allowed": 405,
    "too_slow": 408, "too_large": 413, "unsupported_media_type": 415, "overloaded": 429, "work_failed": 502,
    "work_timed_out": 504,
}  # fmt: skip
REMEDIES = {
    "malformed": "Send JSON that a parser reads.",
    "unauthorized": "Send a key in `X-API-Key` that is not deleted, expired or rotated.",
    "forbidden": "Use a key with the scope, the office and the job types that `detail` names; an admin makes one.",
    "forbidden_host": "Use the host name of the server, or add yours to `[server] allowed_hosts`.",
    "forbidden_origin": "Send the request from the server's own pages, or from a program.",
    "not_found": "Check the id and the path. A key of one office sees only what is of this office.",
    "method_not_allowed": "Use one of the methods in the header `Allow`.",
    "conflict": "Read the thing again; `detail` says what stands against the change.",
    "illegal_transition": "Read the thing again; its status does not lead where you want.",
    "already_dispatched": "It has started and cannot be changed; cancel it, or make another.",
    "already_finished": "It has ended; run it again with `rerun` or `retry`.",
    "too_slow": "Send the whole body at once.",
    "too_large": "Send less at once, such as several batches.",
    "unsupported_media_type": "Send the header `Content-Type: application/json`.",
    "overloaded": "Wait as many seconds as `Retry-After` says, and send the request again.",
    "over_quota": "Wait until some of the office's work has ended, or ask an admin for more.",
    "invalid": "Correct what `errors` names: each has a `field` and a `problem`.",
    "unknown_job_type": "Use one of the types that `GET /api/job-types` lists.",
    "dependency_cycle": "Remove one of the dependencies that `cycle` lists.",
    "too_many_jobs": "Send several requests with at most `most` jobs each.",
    "idempotency_mismatch": "Use another `Idempotency-Key` for another request.",
    "work_failed": "Read `detail`; the work itself has failed.",
    "work_timed_out": "Allow more time, or ask for less.",
    "error": "Read the log of the server, and report the defect.",
    "unavailable": "Send the request again after `Retry-After`; nothing was stored.",
    "slot_busy": "Wait longer (`wait_timeout_seconds`), or try again later.",
    "draining": "Send the request again when the server, or another node, has started.",
    "disk_low": "Free disk space on the server.",
    "commit_unknown": "Look whether it was stored, or repeat it with the same `Idempotency-Key`.",
}


def document() -> dict[str, Any]:
    """Returns the OpenAPI document of a server with all extensions that a server can have."""
    extensions: list[str | extension_api.Extension] = [*extension_api.used_by_server(), "gateway"]
    return describe(Scheduler("sqlite:///never-opened.db", extensions=extensions))


def page() -> str:
    """Returns docs/http.md."""
    return Reference(document()).text()


def operations(found: dict[str, Any]) -> Iterator[tuple[str, str, Operation]]:
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


class Reference:
    def __init__(self, found: dict[str, Any]) -> None:
        self.document, self.schemas = found, found["components"]["schemas"]
        tails = Counter(_tail(name) for name in self.schemas)
        self.names = {name: _name(name, tails[_tail(name)] > 1) for name in self.schemas}
        bodies = Counter(name for _, _, one in operations(found) if (name := self.body_of(one)) is not None)
        # A body that one operation alone takes is shown there, and not among the values.
        self.inline = {name for name, uses in bodies.items() if uses == 1} - self._inner()
        self.of_requests = self._reached(bodies)

    def _inner(self) -> set[str]:
        """Returns the values that are parts of others."""
        return {name for schema in self.schemas.values() for name in _refs(schema)}

    def _reached(self, names: Any) -> set[str]:
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            if (name := waiting.pop()) not in found:
                found.add(name)
                waiting += _refs(self.schemas[name])
        return found

    def body_of(self, operation: Operation) -> str | None:
        """Returns the name of the value that is the body of an operation; None without a named one."""
        schema = _body(operation)
        return next(iter(_refs(schema)), None) if schema is not None else None

    def text(self) -> str:
        sections: dict[str, list[tuple[str, str, Operation]]] = {}
        for method, path, operation in operations(self.document):
            sections.setdefault(operation["tags"][0], []).append((method, path, operation))
        links = [f"[{name}](#{_slug(name)})" for name in ("Refusals", *sections, "Values")]
        parts = [INTRODUCTION.format(conventions=self._conventions(), links=" · ".join(links)), self._refusals()]
        for tag, listed in sections.items():
            inside = [f"[{method} `{path}`](#{_slug(f'{method} {path}')})" for method, path, _ in listed]
            parts.append(f"## {tag}\n\n" + " · ".join(inside))
            parts += [self._operation(*one) for one in listed]
        parts.append(VALUES)
        parts += [self._value(name) for name in sorted(self._shown(), key=lambda name: self.names[name].lower())]
        # The ids of requirements are for readers of the specification.
        return re.sub(r" \((?:[A-Z]+-\w+|spec [\d.]+)\)", "", "\n\n".join(parts)) + "\n"

    def _conventions(self) -> str:
        written: str = self.document["info"]["description"]
        return written.partition("\n\n")[2].strip()

    def _refusals(self) -> str:
        lines = [
            "## Refusals",
            "",
            "Each status that has several codes is listed with those by which an operation may refuse. The "
            "[table of errors](reference.md#errors) has the Python classes of the codes.",
            "",
            "| status | code | title | what to do |",
            "|---|---|---|---|",
        ]
        statuses = _statuses()
        for code, title in sorted(problems.TITLES.items(), key=lambda one: statuses[one[0]]):
            lines.append(f"| {statuses[code]} | `{code}` | {title} | {REMEDIES[code]} |")
        return "\n".join(lines)

    def _operation(self, method: str, path: str, operation: Operation) -> str:
        parts = [f"### {method} `{path}`", self._sentence(method, path, operation)]
        if parameters := operation.get("parameters"):
            rows = [self._parameter(one) for one in parameters]
            parts.append(_table(("parameter", "in", "type", "default", "meaning"), rows))
        if (schema := _body(operation)) is not None:
            parts.append(self._body_text(operation, schema))
        parts += [f"```sh\n{example(method, path, operation, self.names)}\n```", self._answers(operation)]
        return "\n\n".join(parts)

    def _sentence(self, method: str, path: str, operation: Operation) -> str:
        paragraphs = operation.get("description", "").split("\n\n")
        said = [" ".join(one.split()) for one in paragraphs if one and not one.startswith("Needs the scope")]
        said = said or [SENTENCES[method, path]]
        scope = operation.get("x-scope")
        needs = "Needs no key." if scope is None else f"Needs the scope `{scope}`."
        if operation.get("x-whole"):
            needs += " It concerns the whole scheduler: a key of one office is [refused](#keys-of-one-office)."
        return "\n\n".join([*said, needs])

    def _parameter(self, one: Schema) -> tuple[str, ...]:
        schema = {key: value for key, value in one["schema"].items() if key != "default" or value is not None}
        meaning = one.get("description") or _description(schema) or PARAMETERS[one["name"]]
        default = "required" if one.get("required") else _default(schema)
        meaning = meaning[:1].upper() + meaning[1:]
        return f"`{one['name']}`", one["in"], self.kind(schema, nullable=False), default, meaning

    def _body_text(self, operation: Operation, schema: Schema) -> str:
        name = self.body_of(operation)
        if name is None:
            return f"Body: {self.kind(schema)}, as the protocol says."
        optional = "" if {"type": "null"} not in schema.get("anyOf", ()) else " It may be left out."
        if name not in self.inline:
            return f"Body: {self.kind({'$ref': f'#/{name}'})}.{optional}"
        about = self.schemas[name].get("description", "")
        said = [" ".join(f"{about}{optional}".split())] if about or optional else []
        return "\n\n".join([*said, self._fields(name, "body field")])

    def _fields(self, name: str, head: str) -> str:
        schema = self.schemas[name]
        required, asks = schema.get("required", ()), name in self.of_requests
        rows = []
        for field, one in schema.get("properties", {}).items():
            meaning = _description(one) or (self._meaning(name, field) if asks else ANSWERS.get(field, ""))
            default = ("required" if field in required else _default(one),) if asks else ()
            rows.append((f"`{field}`", self.kind(one), *default, meaning[:1].upper() + meaning[1:]))
        return _table((head, "type", *(("default",) if asks else ()), "meaning"), rows)

    def _meaning(self, name: str, field: str) -> str:
        found = FIELDS.get(f"{_tail(name)}.{field}")
        if name.startswith("Bulk"):  # Its fields are a filter, as in lists.
            found = found or PARAMETERS.get(field)
        found = found or FIELDS.get(field)
        if found is None:
            raise LookupError(f"{name}.{field} has no meaning: describe it where it is declared, or in FIELDS")
        return found

    def _answers(self, operation: Operation) -> str:
        lines, refused = [], []
        for status, answer in sorted(operation["responses"].items()):
            if status >= "400":
                refused.append(status)
                continue
            said = answer["description"]
            kinds = [
                "an event stream" if media == "text/event-stream" else self._answer(media, one.get("schema"))
                for media, one in answer.get("content", {}).items()
            ]
            what = ", or ".join(kinds) or "no content"
            because = "" if said == "Successful Response" else f" ({said[0].lower()}{said[1:]})"
            lines.append(f"- **{status}**{because}: {what}")
        codes = self._codes(operation)
        said = " · ".join(status + (f" ({', '.join(codes[status])})" if status in codes else "") for status in refused)
        return "\n".join([*lines, f"- [refusals](#refusals): {said}"])

    def _codes(self, operation: Operation) -> dict[str, list[str]]:
        """Returns the codes by which an operation may refuse with a status that has several, such as 409."""
        has_body, repeats = _body(operation) is not None, _is_repeatable(operation)
        name = self.body_of(operation)
        fields = {
            field for one in self._reached([name] if name else []) for field in self.schemas[one].get("properties", ())
        }
        wanted = {"conflict", "illegal_transition", "already_dispatched", "already_finished", "invalid"}
        wanted |= {"work_failed", "work_timed_out"} | ({"unknown_job_type"} if has_body else set())
        wanted |= {"dependency_cycle"} if "depends_on" in fields else set()
        wanted |= {"too_many_jobs"} if fields & {"jobs", "job_ids"} else set()
        wanted |= {"idempotency_mismatch"} if repeats else set()
        found: dict[str, list[str]] = {}
        for code, status in _statuses().items():
            if code in wanted:
                found.setdefault(str(status), []).append(f"`{code}`")
        return found

    def _answer(self, media: str, schema: Schema | None) -> str:
        if media != "application/json":
            return f"`{media}`"
        return self.kind(schema or {})

    def _shown(self) -> set[str]:
        return {
            name
            for name, schema in self.schemas.items()
            if name not in self.inline and "enum" not in schema and not name.startswith("Page_")
        }

    def _value(self, name: str) -> str:
        schema = self.schemas[name]
        about = " ".join(schema.get("description", "").split())
        parts = [f"### Value {self.names[name]}", *([about] if about else [])]
        return "\n\n".join([*parts, self._fields(name, "field")])

    def kind(self, schema: Schema, nullable: bool = True) -> str:
        """Returns the type of a value with its bounds, in words."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            found = self.schemas[name]
            if "enum" in found:
                return _choice(found["enum"])
            if name.startswith("Page_"):
                return f"a page of {self.kind(found['properties']['items']['items'])}"
            return f"[{self.names[name]}](#{_slug(f'Value {self.names[name]}')})"
        if "anyOf" in schema:
            inner = [self.kind(one) for one in schema["anyOf"] if one.get("type") != "null"]
            null = nullable and len(inner) < len(schema["anyOf"])
            return " or ".join([*dict.fromkeys(inner), *(["null"] if null else [])])
        if "enum" in schema or "const" in schema:
            return _choice(schema.get("enum", [schema.get("const")]))
        match schema.get("type"):
            case "string":
                return "time" if schema.get("format") == "date-time" else f"text{_length(schema)}"
            case "integer":
                return f"whole number{_bounds(schema)}"
            case "number":
                return f"number{_bounds(schema)}"
            case "boolean":
                return "true or false"
            case "array":
                items = self.kind(schema.get("items", {}))
                many = _range(schema.get("minItems") or None, schema.get("maxItems"))
                return f"list{f' ({many})' if many else ''} of {items}"
            case "object":
                values = schema.get("additionalProperties")
                return f"object of {self.kind(values)}" if isinstance(values, dict) and values else "object"
            case None:
                return "any JSON"
            case other:
                return str(other)


def example(method: str, path: str, operation: Operation, names: dict[str, str]) -> str:
    """Returns a command line that sends an operation; words in capitals stand for ids of the reader's."""
    place = {**PLACES.get(path, {}), **PLACES.get((method, path), {})}
    where = re.sub(r"\{(\w+)\}", lambda one: place.get(one[1], one[1].upper()), path)
    if method == "GET" and path in QUERIES:
        where += f"?{QUERIES[path]}"
    words = ["curl", *(() if method == "GET" else ("-X", method)), f'"$NEXTSLOT_URL{where}"']
    if operation.get("x-scope") is not None:
        words.append('-H "X-API-Key: $NEXTSLOT_API_KEY"')
    schema = _body(operation)
    if schema is None:
        return " ".join(words)
    name = next((names[one] for one in _refs(schema)), path)
    key = ".".join(reversed(name.split(" of "))) if " of " in name else name
    if key not in BODIES:
        raise LookupError(f"{method} {path} has no example: write one for {key} in BODIES")
    body = json.dumps(BODIES[key]).replace("'", "'\\''")
    return f"{' '.join(words)} \\\n  -H \"Content-Type: application/json\" \\\n  -d '{body}'"


def _statuses() -> dict[str, int]:
    """Returns the status of every code: that of its class, or of HTTP alone."""
    classes = [errors.NextslotError]
    for one in classes:
        classes += one.__subclasses__()
    found = {one.code: problems._status(one.__new__(one)) for one in reversed(classes)}
    return {code: STATUSES.get(code) or found[code] for code in problems.TITLES}


def _is_repeatable(operation: Operation) -> bool:
    return any(one["name"] == "Idempotency-Key" for one in operation.get("parameters", ()))


def _body(operation: Operation) -> Schema | None:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    return None if content is None else content["schema"]


def _refs(schema: Any) -> list[str]:
    """Returns the names of the values that a schema names."""
    if isinstance(schema, list):
        return [name for one in schema for name in _refs(one)]
    if not isinstance(schema, dict):
        return []
    if isinstance(named := schema.get("$ref"), str):
        return [named.rpartition("/")[2]]
    return [name for one in schema.values() for name in _refs(one)]


def _tail(name: str) -> str:
    return name.rpartition("__")[2]


def _name(name: str, is_shared: bool) -> str:
    """Names a value as people do: two values of one name also by the module that they are from."""
    if not is_shared:
        return _tail(name)
    parts = name.split("__")
    module = parts[2] if parts[1] == "extensions" else parts[-2]
    return f"{parts[-1]} of {module}"


def _description(schema: Schema) -> str:
    parts = (schema, *schema.get("anyOf", ()))
    return next((" ".join(one["description"].split()) for one in parts if "description" in one), "")


def _default(schema: Schema) -> str:
    value = schema.get("default")
    return "none" if value is None else f"`{json.dumps(value)}`"


def _length(schema: Schema) -> str:
    low, high = schema.get("minLength"), schema.get("maxLength")
    said = _range(low or None, high)
    return f" ({said} character{'' if (high or low) == 1 else 's'})" if said else ""


def _bounds(schema: Schema) -> str:
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    parts = [
        *([f"above {_number(above)}"] if above is not None else []),
        *([said] if (said := _range(schema.get("minimum"), schema.get("maximum"))) else []),
        *([f"below {_number(below)}"] if below is not None else []),
    ]
    return f" ({' and '.join(parts)})" if parts else ""


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return _number(low) if low == high else f"{_number(low)} to {_number(high)}"
    if low is not None:
        return f"at least {_number(low)}"
    return "" if high is None else f"at most {_number(high)}"


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:,}"


def _choice(values: list[Any]) -> str:
    return ", ".join("null" if one is None else f"`{one}`" for one in values)


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


VALUES = """\
## Values

The objects inside requests and answers, by name. A page has `items`, and `next_cursor`, which is null on the last \
one."""

INTRODUCTION = """\
# HTTP reference

<!-- made by: python scripts/make_http_reference.py -->

This page lists every operation of the HTTP API: what it takes, an example that you can paste, and what it answers. \
A script makes the page from the declarations of the routes, and a test sends every example to a server. Programs read \
the same at `/openapi.json`; you can try it at `/docs`.

{links}

The examples use two variables; while there are no keys, the second stays empty:

```sh
export NEXTSLOT_URL=http://127.0.0.1:8000 NEXTSLOT_API_KEY=
```

Words in capitals, such as JOB_ID, stand for ids of yours. `thumbnail` is a job type of yours with the parameter `path`.

{conventions}

## Keys of one office

A key of one office uses what is of this office, and no operation that concerns the whole scheduler. A key of the \
office `default` also uses the operations of [Legacy](#legacy), `POST /story/generate` and `POST /research/run`. \
[Security](security.md) says more."""


if __name__ == "__main__":
    written = page()
    PAGE.write_text(written)
    sys.stdout.write(f"{PAGE.name}: {len(written.splitlines()):,} lines\n")
