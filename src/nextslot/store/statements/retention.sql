-- roots: first jobs of chains, and of groups, that were created before a time: a page of them, the oldest first
select job_id, created_at, group_id from jobs
where job_id >= '' and created_at < :before and (created_at, job_id) > (:after_at, :after_id) and retry_of is null
    and (group_id is null
        or sequence = (select min(member.sequence) from jobs member where member.group_id = jobs.group_id))
order by created_at, job_id limit :limit;

-- chain: what is to be known of a chain before it goes
select job_id, lane_id, chain_id, retry_of, stage, outcome, decision, started_at, finished_at from jobs
where job_id = :chain_id or (chain_id = :chain_id and retry_of is not null);

-- members: the same of all chains of a group
select job_id, lane_id, chain_id, retry_of, stage, outcome, decision, started_at, finished_at from jobs
where group_id = :group_id;

-- referred: whether something alive refers to one of these jobs: another that has not ended, or an unsent message
select 1 from dependencies join jobs on jobs.job_id = dependencies.job_id
where dependencies.depends_on in (select key from json_each(:job_ids)) and jobs.finished_at is null
union all
select 1 from deliveries where job_id in (select key from json_each(:job_ids)) and status = 'PENDING'
limit 1;

-- runs: the runs of jobs, for their files
select run_id from runs where job_id in (select key from json_each(:job_ids));

-- mark_jobs: history is complete only after the end of the last of these jobs
insert into rollup_bounds (name, at)
select 'history_from', max(finished_at) + 1 from jobs where job_id in (select key from json_each(:job_ids))
having max(finished_at) is not null
on conflict (name) do update set at = excluded.at where rollup_bounds.at < excluded.at;

-- mark_direct: the same of direct executions
insert into rollup_bounds (name, at)
select 'history_from', max(finished_at) + 1 from direct_executions
where run_id in (select key from json_each(:run_ids)) having max(finished_at) is not null
on conflict (name) do update set at = excluded.at where rollup_bounds.at < excluded.at;

-- drop_attempts: of messages about jobs
delete from delivery_attempts where delivery_id in (
    select delivery_id from deliveries where job_id in (select key from json_each(:job_ids)));

-- drop_deliveries: messages about jobs
delete from deliveries where job_id in (select key from json_each(:job_ids));

-- drop_artifacts: of the runs of jobs
delete from artifacts where run_id in (select run_id from runs where job_id in (select key from json_each(:job_ids)));

-- drop_checkpoints: what the runs of jobs left for the next attempt
delete from checkpoints where run_id in (select run_id from runs where job_id in (select key from json_each(:job_ids)));

-- drop_signals: answers to the waits of chains
delete from signals where chain_id in (select key from json_each(:job_ids));

-- drop_runs: of jobs
delete from runs where job_id in (select key from json_each(:job_ids));

-- drop_waits: what jobs waited for, and who waited for them and has ended
delete from dependencies
where job_id in (select key from json_each(:job_ids)) or depends_on in (select key from json_each(:job_ids));

-- drop_occurrences: what the ledger says of jobs
delete from occurrences where job_id in (select key from json_each(:job_ids));

-- drop_jobs: whole chains
delete from jobs where job_id in (select key from json_each(:job_ids));

-- drop_group: a group whose members are gone
delete from job_groups where group_id = :group_id;

-- skipped: entries of the ledger that made no job, and are neither recent nor the newest of their schedule
select schedule_id, instant from occurrences
where job_id is null and coalesce(until, instant) < :before and exists (
    select 1 from occurrences newer
    where newer.schedule_id = occurrences.schedule_id and newer.instant > occurrences.instant)
limit :limit;

-- drop_skipped: one of them
delete from occurrences where schedule_id = :schedule_id and instant = :instant;

-- direct: direct executions that ended before a time
select run_id from direct_executions where finished_at < :before order by arrival limit :limit;

-- drop_reservations: of direct executions
delete from reservations where run_id in (select key from json_each(:run_ids)) and status <> 'ACTIVE';

-- drop_direct: direct executions
delete from direct_executions where run_id in (select key from json_each(:run_ids));

-- first_recent_event: from here on events are kept; the newest always is
select coalesce((select seq from events where timestamp >= :before order by seq limit 1), (select max(seq) from events));

-- first_event: the oldest that is kept
select min(seq) from events;

-- drop_events: the oldest, up to a number
delete from events where seq < :until;

-- deliveries: messages that ended before a time; those about a job only when all about it did
select delivery_id from deliveries
where finished_at < :before and (job_id is null or not exists (
    select 1 from deliveries other where other.job_id = deliveries.job_id
        and (other.finished_at is null or other.finished_at >= :before)))
order by delivery_id limit :limit;

-- drop_delivery_attempts: of messages
delete from delivery_attempts where delivery_id in (select key from json_each(:delivery_ids));

-- drop_messages: deliveries by their ids
delete from deliveries where delivery_id in (select key from json_each(:delivery_ids));

-- audit: entries before a time
select audit_id from audit where timestamp < :before order by audit_id limit :limit;

-- drop_audit: entries of the audit log
delete from audit where audit_id in (select key from json_each(:audit_ids));

-- known: which of these runs and direct executions are stored, and whether they have ended
select run_id, finished_at is not null from runs where run_id in (select key from json_each(:run_ids))
union all
select run_id, finished_at is not null from direct_executions
where run_id in (select key from json_each(:run_ids));

-- rollups: spans of time that had ended before a time, with rollups or depths of the queue
select step, at from rollups where at + step * 1000000 <= :before group by step, at
union
select step, at from queue_depths where at + step * 1000000 <= :before group by step, at
limit :limit;

-- drop_rollups: of one span
delete from rollups where step = :step and at = :at;

-- drop_depths: of one span
delete from queue_depths where step = :step and at = :at;
