-- ready: ready jobs, with their places
select job_id, office_id, lane_id, priority, aged_steps, position, created_at, passed_over_since from jobs
where stage = 'QUEUED' and unmet = 0 and is_due = 1 and is_turn = 1;

-- started: jobs with a start event after an event, in the order of their starts
select jobs.job_id, jobs.office_id, jobs.lane_id, jobs.priority, jobs.aged_steps, jobs.position, jobs.created_at,
    jobs.passed_over_since
from events join jobs on jobs.job_id = events.job_id
where events.seq > :seq and events.type = 'job_started' order by events.seq;

-- running: the lanes of the running jobs
select lane_id from jobs where stage = 'RUNNING' and finished_at is null;

-- callers: unfinished direct executions, and whether each has its office's reservation
select direct_executions.run_id, direct_executions.office_id, direct_executions.lane_id, direct_executions.status,
    reservations.reservation_id is not null
from direct_executions left join reservations
    on reservations.run_id = direct_executions.run_id and reservations.status = 'ACTIVE'
where direct_executions.finished_at is null order by direct_executions.arrival;

-- lanes: the needs of a job of each lane
select lane_id, office_id, job_type, resources, local, shared from lanes;

-- limits: the capacity of each limit
select limit_key, capacity from limits;

-- pauses: all pauses, those of offices too
select scope, name from pauses union all select 'office', office_id from offices where is_paused = 1;

-- held: resources that are held because they do not answer
select resource from outages where held_since is not null;

-- used_up: resources whose quota is used up
select resource from outages where quota_until is not null;

-- events: the events after an event
select seq, type, job_id, run_id, office_id, details, timestamp from events where seq > :seq order by seq;

-- unfinished: whether a run or a direct execution has not ended
select 1 from runs join jobs on jobs.job_id = runs.job_id
where runs.run_id = :run_id and runs.status is null and jobs.stage = 'RUNNING' and jobs.finished_at is null
union all
select 1 from direct_executions where run_id = :run_id and status = 'RUNNING';

-- jobs: every job with its run, with the columns that the laws of the lifecycle check
select jobs.job_id, jobs.chain_id, jobs.retry_of, jobs.office_id, jobs.lane_id, jobs.stage, jobs.outcome, jobs.decision,
    jobs.retry_policy, runs.failure_kind, jobs.created_at, jobs.started_at, jobs.finished_at, jobs.scheduled_for,
    jobs.expires_at, jobs.unmet, jobs.is_due, jobs.is_turn, jobs.group_id, jobs.sequence, jobs.webhook is not null,
    jobs.cancel_mode, runs.timeout_at, runs.run_id, runs.beside, jobs.await_signal, jobs.is_awaiting, jobs.asked_at,
    jobs.answer_by, jobs.worker_id, runs.park, runs.session_id, jobs.cancel_reason
from jobs left join runs on runs.job_id = jobs.job_id order by jobs.job_id;

-- waits: the chains for which jobs still wait
select job_id, chain_id from dependencies where is_met = 0;

-- reservations: the active reservations
select reservation_id, expires_at from reservations where status = 'ACTIVE';

-- deliveries: every message
select delivery_id, status, job_id, is_own, event from deliveries order by delivery_id;

-- schedules: every schedule, and how far its ledger goes
select schedule_id, cron_expression, created_at, accounted_until, enabled, next_trigger_at from schedules
where deleted_at is null;

-- occurrences: the ledger of one schedule
select instant, until, count, outcome from occurrences where schedule_id = :schedule_id order by instant;

-- cron_settings: the settings that determine the occurrences of each schedule
select schedule_id, office_id, cron_expression, timezone, enabled, deleted_at is not null, catch_up,
    catch_up_window_seconds, overlap, accounted_until from schedules;

-- busy: schedules with an unfinished job
select distinct schedule_id from jobs where schedule_id is not null and finished_at is null;

-- offices: the settings that limits follow
select office_id, status, max_concurrent_jobs, role_limits, webhook, priority_aging_seconds from offices;

-- dependents: the dependency policy of each job that waits for others
select job_id, on_dependency_failure from jobs where stage = 'QUEUED' and unmet > 0;

-- needed: jobs on which unfinished jobs depend
select dependencies.depends_on from dependencies join jobs on jobs.job_id = dependencies.job_id
where jobs.finished_at is null;

-- subscriptions: the subscriptions that get messages
select webhook_id, url, events, office_id from webhooks where is_enabled = 1;

-- sent: the messages about events after a number
select event, url, office_id, seq from deliveries where seq > :seq;

-- direct: ended executions, with their requests
select direct_id, status, failure_kind, is_detached, cancel_requested_at is not null, timeout_seconds, params,
    created_at, started_at from direct_executions where finished_at is not null;

-- last_event: the number of the newest event
select coalesce(max(seq), 0) from events;

-- kinds: the values that determine the lane of each job
select job_id, lane_id, office_id, role, job_type, resources, limit_keys, affinity from jobs;

-- queue: every queued job in the order of its office's queue
select job_id, office_id from jobs where stage = 'QUEUED'
order by office_id, order_priority desc, position, created_at, job_id;

-- holders: running work, with its lane
select job_id, lane_id from jobs where stage = 'RUNNING' and finished_at is null
union all
select run_id, lane_id from direct_executions where status = 'RUNNING';

-- waiting_callers: unfinished direct executions, with their times
select run_id, status, job_type, wait_until, timeout_at, cancel_requested_at from direct_executions
where finished_at is null;

-- pending: messages to send, and when
select delivery_id, origin, next_attempt_at from deliveries where status = 'PENDING';

-- time_limits: running work with a timeout, in seconds
select runs.run_id, jobs.timeout_seconds from runs join jobs on jobs.job_id = runs.job_id
where runs.status is null and jobs.stage = 'RUNNING' and jobs.finished_at is null and jobs.timeout_seconds is not null
union all
select run_id, timeout_seconds from direct_executions where status = 'RUNNING';

-- results: ended work whose result reports the tokens that it has used
select runs.run_id, jobs.lane_id, runs.result from runs join jobs on jobs.job_id = runs.job_id
where runs.result like '%total_tokens%'
union all
select run_id, lane_id, result from direct_executions where result like '%total_tokens%';

-- device_holds: how many named devices of a resource each worker holds
select worker_id, resource, count(*) from device_holds group by worker_id, resource;

-- workers: the workers of running work, with its lane
select worker_id, lane_id from jobs where stage = 'RUNNING' and finished_at is null and worker_id is not null
union all
select worker_id, lane_id from direct_executions where status = 'RUNNING';

-- failures: the counted failures by office, type and kind
select office_id, job_type, failure_kind, sum(total) from failures group by office_id, job_type, failure_kind;

-- failed: the failed jobs by office, type and kind
select jobs.office_id, jobs.job_type, runs.failure_kind, count(*) from jobs join runs on runs.job_id = jobs.job_id
where jobs.outcome = 'FAILED' and jobs.stage <> 'CANCELLED' and runs.failure_kind <> 'parked'
group by jobs.office_id, jobs.job_type, runs.failure_kind;

-- caller_lanes: the lane of each direct execution
select office_id, direct_id, lane_id from direct_executions;

-- signals: every answer
select chain_id, name, number, job_id, answer, payload, sent_by, sent_at from signals order by chain_id, name, number;

-- checkpoint: the last checkpoint of a chain
select value from checkpoints where chain_id = :chain_id;
