"""Makes webhook messages in the form of the old service, one when a chain or a batch has ended (CON-004)."""

from collections.abc import Mapping, Sequence

from nextslot.domain import Group, Job, Json, RunStatus, json_form
from nextslot.extension_api.host import FormattedMessage, Tx
from nextslot.extension_api.tables import jobs, runs
from nextslot.system.instant import Instant

from . import legacy_table, old_words


class OldMessages:
    """The webhook format `legacy`."""

    words: Sequence[str] = old_words.WEBHOOK_EVENTS

    def of_job(self, tx: Tx, job: Job, status: RunStatus, now: Instant) -> FormattedMessage | None:
        """Returns the old service's message: about the whole chain, under the id of its first job."""
        event = old_words.RUN_STATUSES[status]
        if event not in old_words.events(job.webhook or {}):
            return None
        chain, run = jobs.chain(tx, job.chain_id), runs.of_job(tx, job.job_id)
        body: dict[str, Json] = {
            "event": event,
            "job_id": job.chain_id,
            "type": old_words.TYPES.get(job.job_type, job.job_type),
            "status": event,
            "params": old_words.params(chain[0]),
            "created_at": json_form.time(chain[0].created_at),
            "started_at": json_form.time(next((one.started_at for one in chain if one.started_at), None)),
            "finished_at": json_form.time(job.finished_at),
            "exit_code": None if run is None else run.exit_code,
            "error": None if run is None else run.error,
            "artifacts": [] if run is None else [one.path for one in run.artifacts],
            "timestamp": json_form.time(now),
        }
        return _message(event, job.chain_id, body)

    def of_group(self, tx: Tx, group: Group, webhook: Mapping[str, Json], now: Instant) -> FormattedMessage | None:
        batch = old_words.OldBatch(group, legacy_table.members(tx, group.group_id), webhook)
        status = old_words.batch_status(batch)
        if not old_words.hears_of_batch(webhook, status):
            return None
        body = {"event": status, **old_words.batch(batch), "timestamp": json_form.time(now)}
        return _message(status, group.group_id, body)


def _message(event: str, old_id: str, body: Mapping[str, Json]) -> FormattedMessage:
    headers = {"User-Agent": old_words.USER_AGENT, "X-Job-ID": old_id, "X-Job-Event": event}
    return FormattedMessage(event, body, headers)
