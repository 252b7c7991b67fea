"""Commands about jobs: submit, list, show, change, cancel, retry, move."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nextslot.cli import arguments, output, watching
from nextslot.cli.options import (
    Cursor,
    Everything,
    Filter,
    Ids,
    Interrupt,
    JobId,
    Limit,
    NotBefore,
    Office,
    Params,
    Priority,
    Reason,
    Retries,
    RetryOn,
    Title,
    Type,
    Webhook,
    WebhookFormat,
    Yes,
)
from nextslot.cli.session import Session, command
from nextslot.errors import Invalid, NotFound

if TYPE_CHECKING:
    from nextslot.client import Job, JobDetail, Run, Why
    from nextslot.client.keyword_arguments import JobFilter
    from nextslot.client.values import DryRun

# The count before a confirmation stops here.
MOST_COUNTED = 10_000


def register(app: typer.Typer) -> None:
    for function in (
        submit,
        run,
        wait,
        ls,
        show,
        why,
        log,
        cat,
        cancel,
        retry,
        rerun,
        move,
        change,
        signal,
        approve,
        reject,
    ):
        command(app)(function)


def submit(
    session: Session,
    job_type: Type,
    params: Params = None,
    priority: Priority = None,
    urgent: Annotated[bool, typer.Option("--urgent", help="Run before all other jobs of the office.")] = False,
    title: Title = None,
    at: NotBefore = None,
    after: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Start only after this job has succeeded.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="The longest time it may run.")] = None,
    office: Office = None,
    role: Annotated[str | None, typer.Option(help="The role that runs it.")] = None,
    affinity: Annotated[
        str | None, typer.Option(metavar="NAME", help="What its resource should have loaded, such as a model.")
    ] = None,
    limit_key: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Of the jobs with this key, so many run at once as the configuration says."),
    ] = None,
    unique_key: Annotated[
        str | None, typer.Option(help="Refuse it while another job with this key has not ended.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Submit it again with this key, and it is the same job.")
    ] = None,
    webhook: Webhook = None,
    webhook_format: WebhookFormat = None,
    retries: Retries = None,
    retry_on: RetryOn = None,
    await_signal: Annotated[
        str | None, typer.Option(metavar="NAME", help="Start only after this signal: see `nextslot approve`.")
    ] = None,
    question: Annotated[str | None, typer.Option(help="What the signal decides, for those who answer.")] = None,
    deadline: Annotated[float | None, typer.Option(metavar="SECONDS", help="How long it waits for the signal.")] = None,
    on_deadline: Annotated[
        str | None, typer.Option(metavar="ANSWER", help="Without an answer: approve, reject (default) or fail.")
    ] = None,
    answered_by: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Only the key of this name may answer; or `link`.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended, retries included.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait, and show its log as it is written.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Submit nothing: show what it would wait for, and when it would start.")
    ] = False,
) -> None:
    """Submit a job to the queue."""
    client = session.client
    options = arguments.given(
        priority=priority,
        urgent=urgent or None,
        title=title,
        scheduled_for=arguments.moment(at),
        depends_on=[arguments.job_id(client, one) for one in after or ()] or None,
        timeout_seconds=timeout,
        office_id=office,
        role=role,
        affinity=affinity,
        limit_keys=limit_key or None,
        unique_key=unique_key,
        await_signal=_wait(await_signal, question, deadline, on_deadline, answered_by),
        **arguments.follow_up(webhook, webhook_format, retries, retry_on),
    )
    values = parsed_params(session, job_type, params)
    if dry_run:
        tried = client.dry_run(job_type, values, **options)
        session.show(tried.json, lambda: _explain(tried))
        return
    job = client.submit(job_type, values, idempotency_key=idempotency_key, **options)
    submitted(session, job, wait=wait, follow=follow)


def _wait(
    name: str | None, question: str | None, deadline: float | None, on_deadline: str | None, keys: list[str] | None
) -> dict[str, Any] | None:
    parts = arguments.given(
        question=question, deadline_seconds=deadline, on_deadline=on_deadline, answered_by=keys or None
    )
    if name is None and parts:
        raise typer.BadParameter("--question, --deadline, --on-deadline and --answered-by need --await-signal NAME")
    return None if name is None else {"name": name, **parts}


def submitted(session: Session, job: "Job", *, wait: bool, follow: bool) -> None:
    """Prints the id of a submitted job or, with --wait, waits for its end."""
    if wait or follow:
        watching.wait(session, job.job_id, follow=follow)
    else:
        session.say(job.json, job.job_id)


def parsed_params(session: Session, job_type: str, params: list[str] | None) -> dict[str, Any]:
    """Parses parameters by the type's schema. An unknown type is left to the server to refuse."""
    return parsed_for_all(session, [job_type], params)


def parsed_for_all(session: Session, job_types: Sequence[str], params: list[str] | None) -> dict[str, Any]:
    """Parses parameters that several types get; the first type whose schema has a parameter says what it is."""
    if not params:
        return {}
    types = {one.job_type: one.params_schema for one in session.client.job_types()}
    schemas = [types.get(job_type, {}) for job_type in job_types]
    return {
        name: value
        for given in params
        for name, value in arguments.parameters([given], _that_knows(given, schemas)).items()
    }


def _that_knows(given: str, schemas: Sequence[arguments.Schema]) -> arguments.Schema:
    key = given.partition("=")[0].removesuffix(":")
    return next((schema for schema in schemas if key in schema.get("properties", {})), schemas[0])


def run(
    session: Session,
    job_type: Type,
    params: Params = None,
    wait_timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The longest wait for a slot; default 300.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The longest time the work may take.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Let the work continue if you disconnect.")] = False,
    direct_id: Annotated[str | None, typer.Option("--id", help="An id of your choice.")] = None,
    office: Office = None,
) -> None:
    """Run a job type directly and print the result.

    It gets the next free slot, before queued jobs. Ctrl-C disconnects, which stops the work unless --detach is given.
    """
    options = arguments.given(
        wait_timeout_seconds=wait_timeout,
        timeout_seconds=timeout,
        detach=detach or None,
        direct_id=direct_id,
        office_id=office,
    )
    watching.run(session, job_type, parsed_params(session, job_type, params), options)


def wait(
    session: Session,
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show its log as it is written.")] = False,
) -> None:
    """Wait until a job has ended, retries included, and print its result.

    While it does not run, stderr says what it waits for.
    """
    watching.wait(session, arguments.job_id(session.client, job), follow=follow, is_new=False)


def ls(
    session: Session,
    status: Annotated[str | None, typer.Option(help="WAITING, QUEUED, RUNNING, …; separate several by commas.")] = None,
    job_type: Annotated[str | None, typer.Option("--type", help="The job type.")] = None,
    office: Office = None,
    group: Annotated[str | None, typer.Option(help="The group's id.")] = None,
    query: Annotated[
        str | None, typer.Option("--query", "--text", "-q", help="Such as 'status:failed type:ingest since:2h words'.")
    ] = None,
    awaiting: Annotated[bool, typer.Option("--awaiting", help="Only those that wait for an answer.")] = False,
    filter: Filter = None,
    sort: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="created_at, finished_at, duration or priority; -FIELD is descending."),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List jobs, newest first unless --sort says another order."""
    given = {"status": status, "job_type": job_type, "office_id": office, "group_id": group, "q": query}
    given["awaiting_signal"] = "true" if awaiting else None
    wanted = arguments.job_filter([*(f"{name}={value}" for name, value in given.items() if value), *(filter or ())])
    page = session.client.jobs_page(limit, cursor, sort=sort, **wanted)
    session.list(page.json, HEADINGS, [row(job) for job in page.items], "no jobs")


# How long `why` waits for a forecast.
FORECAST_SECONDS = 30.0
HEADINGS = ("ID", "TYPE", "STATUS", "PRIORITY", "CREATED", "TOOK", "TITLE")


def row(job: "Job") -> list[Any]:
    attempt = f" (attempt {job.attempt})" if job.attempt > 1 else ""
    return [
        output.short(job.job_id),
        job.job_type,
        output.coloured(job.status),
        job.priority,
        job.created_at,
        output.took(job.started_at, job.finished_at),
        _about(job) + attempt,
    ]


def _about(job: "Job") -> str:
    """Says what a job is about: its title, else its topic; and which answer it waits for."""
    topic = job.params.get("topic")
    about = job.title or (topic if isinstance(topic, str) else "")
    asked = job.awaiting and f"waits for {job.awaiting['name']!r}: {job.awaiting['question'] or 'an answer'}"
    return " · ".join(one for one in (about, asked) if one)


def show(session: Session, job: JobId) -> None:
    """Show a job with its run and its chain."""
    found = session.client.job(arguments.job_id(session.client, job))
    session.show(found.json, lambda: _show(found))


def _show(job: "JobDetail") -> None:
    run = job.run
    output.facts(
        {
            "job": job.job_id,
            "type": job.job_type,
            "title": job.title,
            "status": output.coloured(job.status),
            "permanently failed": "yes" if job.permanently_failed else None,
            "office": job.office_id,
            "params": job.params or None,
            "priority": job.priority,
            "aged": f"by {job.aged_steps}" if job.aged_steps else None,
            "group": job.group_id,
            "depends on": ", ".join(job.depends_on),
            "resources": job.resources or None,
            "created": job.created_at,
            "created by": job.created_by,
            "not before": job.scheduled_for,
            "expires": job.expires_at,
            "started": job.started_at,
            "finished": job.finished_at,
            "cancelled": job.cancel_reason,
            "run": run.run_id if run else None,
            "engine": _place(run) if run else None,
            "took": output.took(run.started_at, run.finished_at) if run else None,
            "exit code": run.exit_code if run else None,
            "error": f"{run.error} ({run.failure_kind})" if run and run.error else None,
            "skipped because": run.reason if run else None,
            "result": output.for_people(run.result) if run else None,
            "artifacts": ", ".join(one.name for one in run.artifacts) if run else None,
            "checkpoint": _checkpoint(job),
            "waits for": _waits_for(job),
        }
    )
    if len(job.chain) > 1:
        output.say("")
        output.table(HEADINGS, [row(one) for one in job.chain], "")


def _waits_for(job: "JobDetail") -> str | None:
    wait = job.awaiting
    if wait is None:
        return None
    who = f" from {', '.join(wait['answered_by'])}" if wait["answered_by"] else ""
    deadline = f"; {wait['on_deadline']} at {wait['answer_by']}" if wait["answer_by"] else ""
    return f"the signal {wait['name']}{who}: {wait['question'] or 'no question'}{deadline}"


def _place(run: "Run") -> str:
    """Returns the engine of a run, the run's state there until it ends, and its handle."""
    found = run.placement or {}
    state = found.get("state") if run.status is None else None
    return ", ".join(str(one) for one in (found.get("engine"), state, found.get("handle")) if one)


def _checkpoint(job: "JobDetail") -> str | None:
    kept = job.checkpoint
    return None if kept is None else f"{output.for_people(kept.value)} (stored {output.moment(kept.stored_at)})"


def why(session: Session, job: JobId) -> None:
    """Explain why a job is not running, and when it is expected to start."""
    job_id = arguments.job_id(session.client, job)
    found = session.client.why(job_id, FORECAST_SECONDS if session.is_json else 0)

    def sentences() -> None:
        for reason in found.reasons:
            output.say(output.clean(reason.text))
        # Prints the reasons at once, so that people can read them while the forecast is made.
        is_awaited = found.status in ("WAITING", "QUEUED") and found.forecast_at is None
        _expected(session.client.why(job_id, FORECAST_SECONDS) if is_awaited else found)

    session.show(found.json, sentences)


def _explain(tried: "DryRun") -> None:
    if not tried.is_new:
        output.say(f"Job {tried.job.job_id} has this key and has not ended; a submission is answered with that job.")
    for reason in tried.reasons:
        output.say(output.clean(reason.text))
    _expected(tried)


def _expected(forecast: "Why") -> None:
    if forecast.status in ("WAITING", "QUEUED") and forecast.expected_start is not None:
        end = f", to end {output.moment(forecast.expected_end)}" if forecast.expected_end else ""
        output.say(
            f"Expected to start {output.moment(forecast.expected_start)}{end} (confidence: {forecast.confidence})."
        )


Payload = Annotated[
    str | None, typer.Option(metavar="JSON", help="What the work gets with the answer; @FILE reads a file.")
]
SignalName = Annotated[str | None, typer.Argument(help="The signal's name; default: the one that the job waits for.")]


def signal(
    session: Session,
    job: JobId,
    name: Annotated[str, typer.Argument(help="The signal's name.", show_default=False)],
    payload: Payload = None,
    signal_id: Annotated[
        str | None, typer.Option("--id", help="A name of your choice: sent again, it is the same answer.")
    ] = None,
) -> None:
    """Send the signal that a job waits for, or will wait for."""
    _answer(session, job, name, "approve", payload, signal_id)


def approve(session: Session, job: JobId, name: SignalName = None, payload: Payload = None) -> None:
    """Say yes to a job that waits for an answer."""
    _answer(session, job, name, "approve", payload)


def reject(session: Session, job: JobId, name: SignalName = None, payload: Payload = None) -> None:
    """Say no to a job that waits for an answer: it is cancelled; a parked session goes on with the no."""
    _answer(session, job, name, "reject", payload)


def _answer(
    session: Session, job: str, name: str | None, answer: str, payload: str | None, signal_id: str | None = None
) -> None:
    client = session.client
    job_id = arguments.job_id(client, job)
    if name is None:
        chain = client.job(job_id).chain
        # Uses the last wait even if it was answered: the server answers a repeated answer with the stored one.
        wait = (chain[-1].awaiting or chain[-1].await_signal) if chain else None
        if wait is None:
            raise Invalid(f"job {job_id} does not wait for an answer; name the signal to send one before it does")
        name = str(wait["name"])
    value = None if payload is None else arguments.json_value(payload)
    sent = client.signal(job_id, name, value, answer, signal_id)
    kept = "" if sent.job_id else "; it is kept until the job waits for it"
    session.say(sent.json, f"{sent.name}: {sent.answer} by {sent.sent_by}{kept}")


def log(
    session: Session,
    job: Annotated[str, typer.Argument(metavar="ID", help="The job's id, or its run's.", show_default=False)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log as it is written.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only this many of the last lines.")] = None,
) -> None:
    """Print the log of a job's run."""
    run_id = arguments.run_id(session.client, job)
    if follow:
        for text in session.client.follow_log(run_id, tail):
            watching.write_log(session, text)
    else:
        text = session.client.log(run_id, tail)
        session.show({"run_id": run_id, "log": text}, lambda: watching.write_log(session, text))


def cat(
    session: Session,
    job: Annotated[str, typer.Argument(metavar="ID", help="The job's id, or its run's.", show_default=False)],
    artifact: Annotated[
        str | None, typer.Argument(help="The file's name; default: its Markdown, or its only one.")
    ] = None,
) -> None:
    """Print a file that a job has made."""
    run = session.client.run_by_id(arguments.run_id(session.client, job))
    name = artifact or _readable(job, [one.name for one in run.artifacts])
    content = session.client.artifact(run.run_id, name)
    about = {"run_id": run.run_id, "name": name, "text": content.decode(errors="replace")}
    session.show(about, lambda: output.write(content))


def _readable(job: str, names: list[str]) -> str:
    """Chooses the file to print: the first Markdown file, else the only file."""
    if not names:
        raise NotFound("artifact", job, "the job has made no file")
    written = [name for name in sorted(names) if name.endswith(".md")]
    if not written and len(names) > 1:
        raise Invalid(f"job {job} has made several files: {', '.join(sorted(names)[:20])}; name one of them")
    return written[0] if written else names[0]


def cancel(
    session: Session,
    jobs: Ids = None,
    filter: Filter = None,
    everything: Everything = False,
    running: Annotated[
        bool, typer.Option("--running", help="With --filter or --all: cancel running jobs too.")
    ] = False,
    interrupt: Interrupt = None,
    reason: Reason = None,
    yes: Yes = False,
) -> None:
    """Cancel jobs by id or by a filter."""
    _by_id_or_filter(jobs, filter, everything)
    client = session.client
    if not jobs:
        wanted = arguments.job_filter(filter or ())
        statuses = "WAITING,QUEUED,RUNNING" if running else "WAITING,QUEUED"
        _confirm(session, _narrowed(wanted, statuses), "cancel", yes)
        done = client.cancel_many(reason=reason, interrupt=interrupt, include_running=running, all=everything, **wanted)
        summary = f"{done.cancelled} cancelled, {done.stopping} asked to stop, {done.finishing} left to finish"
        session.say(done.json, summary)
        return
    found = [client.cancel(one, reason, interrupt) for one in [arguments.job_id(client, one) for one in jobs]]
    session.show(_one_or_all(found), lambda: _print_cancelled(found))


def _print_cancelled(found: "list[Job]") -> None:
    for job in found:
        running = "asked to stop" if job.cancel_mode == "interrupt" else "it finishes first and is not retried"
        what = "cancelled" if job.status == "CANCELLED" else f"is running: {running}"
        output.say(f"{job.job_id} {what}")


def retry(
    session: Session,
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN", help="The ids of runs, or of their jobs.")] = None,
    priority: Priority = None,
    filter: Filter = None,
    everything: Everything = False,
    yes: Yes = False,
) -> None:
    """Retry failed runs by id or by a filter."""
    _by_id_or_filter(runs, filter, everything)
    client = session.client
    if not runs:
        wanted = arguments.job_filter(filter or ())
        _confirm(session, _narrowed(wanted, "FAILED"), "retry", yes)
        done = client.retry_many(all=everything, **wanted)
        session.say(done.json, f"{done.retried} retried")
        return
    found = [client.retry(one, priority) for one in [arguments.run_id(client, one) for one in runs]]
    session.say(_one_or_all(found), "\n".join(job.job_id for job in found))


def rerun(session: Session, job: JobId, params: Params = None, priority: Priority = None) -> None:
    """Run an ended job again, as a new job.

    Given parameters replace those of the ended job.
    """
    client = session.client
    job_id = arguments.job_id(client, job)
    changed = None
    if params:
        ended = client.job(job_id)
        changed = {**ended.params, **parsed_params(session, ended.job_type, params)}
    new = client.rerun(job_id, changed, priority)
    session.say(new.json, new.job_id)


def move(
    session: Session,
    job: JobId,
    front: Annotated[bool, typer.Option("--front", help="Move to the front of its queue.")] = False,
    back: Annotated[bool, typer.Option("--back", help="Move to the back.")] = False,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Move before this job.")] = None,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Move after this job.")] = None,
    place: Annotated[int | None, typer.Option(min=1, help="Move to this place, counted from 1.")] = None,
) -> None:
    """Move a job in its queue."""
    if sum([front, back, before is not None, after is not None, place is not None]) != 1:
        raise typer.BadParameter(
            "the new place is missing or ambiguous; give one of --front, --back, --before ID, --after ID, --place N"
        )
    client = session.client
    moved = client.move(
        arguments.job_id(client, job),
        to="front" if front else "back" if back else None,
        before=arguments.job_id(client, before) if before else None,
        after=arguments.job_id(client, after) if after else None,
        place=place,
    )
    session.say(moved.json, f"{moved.job_id} moved; its priority is {moved.priority}")


def change(
    session: Session,
    job: JobId,
    params: Params = None,
    priority: Priority = None,
    urgent: Annotated[
        bool | None, typer.Option("--urgent/--not-urgent", help="Run before all other jobs of the office, or not.")
    ] = None,
    title: Title = None,
    at: NotBefore = None,
) -> None:
    """Change a job that has not started.

    Given parameters replace its own.
    """
    client = session.client
    job_id = arguments.job_id(client, job)
    changes = arguments.given(priority=priority, urgent=urgent, title=title, scheduled_for=arguments.moment(at))
    if params:
        found = client.job(job_id)
        changes["params"] = {**found.params, **parsed_params(session, found.job_type, params)}
    if not changes:
        raise typer.BadParameter("nothing to change was given; give key=value, --priority, --urgent, --title or --at")
    changed = client.change(job_id, **changes)
    session.say(changed.json, f"{changed.job_id} changed")


def _by_id_or_filter(some: list[str] | None, filter: list[str] | None, everything: bool) -> None:
    given = bool(some) + bool(filter) + everything
    if given != 1:
        problem = "no jobs were selected" if given == 0 else "jobs were selected in several ways"
        raise typer.BadParameter(f"{problem}; give ids, or --filter NAME=VALUE, or --all")


def _narrowed(wanted: "JobFilter", statuses: str) -> "JobFilter":
    """Returns the filter restricted to the jobs that the command will change, for the count."""
    return wanted if "status" in wanted else {**wanted, "status": statuses}


def _confirm(session: Session, wanted: "JobFilter", verb: str, yes: bool) -> None:
    if yes:
        return
    count = sum(1 for _ in itertools.islice(session.client.jobs(**wanted), MOST_COUNTED))
    number = f"{MOST_COUNTED} or more" if count == MOST_COUNTED else str(count)
    output.confirm(f"{verb} {number} jobs?")


def _one_or_all(found: "list[Job]") -> Any:
    return found[0].json if len(found) == 1 else {"items": [job.json for job in found]}
