-- roots: first jobs of chains and of groups created before a time: a page of them, the oldest first
select job_id, created_at, group_id from jobs
where job_id >= '' and created_at < :before and (created_at, job_id) > (:after_at, :after_id) and retry_of is null
    and (group_id is null
        or sequence = (select min(member.sequence) from jobs member where member.group_id = jobs.group_id))
order by created_at, job_id limit :limit;

-- chain: the facts about a chain that decide whether retention may delete it
select job_id, lane_id, chain_id, retry_of, stage, outcome, decision, started_at, finished_at from jobs
where job_id = :chain_id or (chain_id = :chain_id and retry_of is not null);

-- members: the same facts for all chains of a group
select job_id, lane_id, chain_id, retry_of, stage, outcome, decision, started_at, finished_at from jobs
where group_id = :group_id;

-- referred: whether an unfinished job or an unsent message refers to one of these jobs
select 1 from dependencies join jobs on jobs.job_id = dependencies.job_id
where dependencies.depends_on in (select key from json_each(:job_ids)) and jobs.finished_at is null
union all
select 1 from deliveries where job_id in (select key from json_each(:job_ids)) and status = 'PENDING'
limit 1;

-- runs: the runs of jobs, whose files retention deletes
select run_id from runs where job_id in (select key from json_each(:job_ids));

-- mark_jobs: stores that history is complete only after the end of the last of these jobs
insert into rollup_bounds (name, at)
select 'history_from', max(finished_at) + 1 from jobs where job_id in (select key from json_each(:job_ids))
having max(finished_at) is not null
on conflict (name) do update set at = excluded.at where rollup_bounds.at < excluded.at;

-- mark_direct: stores the same for direct executions
insert into rollup_bounds (name, at)
select 'history_from', max(finished_at) + 1 from direct_executions
where run_id in (select key from json_each(:run_ids)) having max(finished_at) is not null
on conflict (name) do update set at = excluded.at where rollup_bounds.at < excluded.at;

-- drop_attempts: deletes the attempts of messages about jobs
delete from delivery_attempts where delivery_id in (
    select delivery_id from deliveries where job_id in (select key from json_each(:job_ids)));

-- drop_deliveries: deletes messages about jobs
delete from deliveries where job_id in (select key from json_each(:job_ids));

-- drop_artifacts: deletes the artifact entries of the runs of jobs
delete from artifacts where run_id in (select run_id from runs where job_id in (select key from json_each(:job_ids)));

-- drop_checkpoints: deletes the checkpoints of the runs of jobs
delete from checkpoints where run_id in (select run_id from runs where job_id in (select key from json_each(:job_ids)));

-- drop_signals: deletes answers to the waits of chains
delete from signals where chain_id in (select key from json_each(:job_ids));

-- drop_runs: deletes the runs of jobs
delete from runs where job_id in (select key from json_each(:job_ids));

-- drop_waits: deletes the dependencies of jobs, and the dependencies of other, ended jobs on them
delete from dependencies
where job_id in (select key from json_each(:job_ids)) or depends_on in (select key from json_each(:job_ids));

-- drop_occurrences: deletes the ledger entries of jobs
delete from occurrences where job_id in (select key from json_each(:job_ids));

-- drop_jobs: deletes whole chains
delete from jobs where job_id in (select key from json_each(:job_ids));

-- drop_group: deletes a group whose members are deleted
delete from job_groups where group_id = :group_id;

-- skipped: ledger entries that made no job, and are neither recent nor the newest of their schedule
select schedule_id, instant from occurrences
where job_id is null and coalesce(until, instant) < :before and exists (
    select 1 from occurrences newer
    where newer.schedule_id = occurrences.schedule_id and newer.instant > occurrences.instant)
limit :limit;

-- drop_skipped: deletes one such entry
delete from occurrences where schedule_id = :schedule_id and instant = :instant;

-- direct: direct executions that ended before a time
select run_id from direct_executions where finished_at < :before order by arrival limit :limit;

-- drop_reservations: deletes the reservations of direct executions
delete from reservations where run_id in (select key from json_each(:run_ids)) and status <> 'ACTIVE';

-- drop_direct: deletes direct executions
delete from direct_executions where run_id in (select key from json_each(:run_ids));

-- first_recent_event: the first event that retention keeps; the newest event is always kept
select coalesce((select seq from events where timestamp >= :before order by seq limit 1), (select max(seq) from events));

-- first_event: the oldest stored event
select min(seq) from events;

-- drop_events: deletes the oldest events, up to a number
delete from events where seq < :until;

-- deliveries: messages that ended before a time; one about a job only if all messages about that job did
select delivery_id from deliveries
where finished_at < :before and (job_id is null or not exists (
    select 1 from deliveries other where other.job_id = deliveries.job_id
        and (other.finished_at is null or other.finished_at >= :before)))
order by delivery_id limit :limit;

-- drop_delivery_attempts: deletes the attempts of messages
delete from delivery_attempts where delivery_id in (select key from json_each(:delivery_ids));

-- drop_messages: deletes messages by their ids
delete from deliveries where delivery_id in (select key from json_each(:delivery_ids));

-- audit: entries before a time
select audit_id from audit where timestamp < :before order by audit_id limit :limit;

-- drop_audit: deletes entries of the audit log
delete from audit where audit_id in (select key from json_each(:audit_ids));

-- known: which of these runs and direct executions are stored, and whether they have ended
select run_id, finished_at is not null from runs where run_id in (select key from json_each(:run_ids))
union all
select run_id, finished_at is not null from direct_executions
where run_id in (select key from json_each(:run_ids));

-- rollups: spans that ended before a time and have rollups or queue depths
select step, at from rollups where at + step * 1000000 <= :before group by step, at
union
select step, at from queue_depths where at + step * 1000000 <= :before group by step, at
limit :limit;

-- drop_rollups: deletes the rollups of one span
delete from rollups where step = :step and at = :at;

-- drop_depths: deletes the queue depths of one span
delete from queue_depths where step = :step and at = :at;
