-- columns: the columns of a job that a forecast needs
job_id, office_id, lane_id, job_type, schedule_id, group_id, sequence, stage, outcome, decision, priority, aged_steps, ages_at, position,
retry_of, chain_id, scheduled_for, expires_at, unmet, is_due, is_turn, passed_over_since, on_dependency_failure, timeout_seconds,
retry_policy, created_at, queued_at, started_at, finished_at, cancel_mode, cancelled_at, worker_id

-- queue: the first queued jobs of an office, in order
select {forecast.columns} from jobs
where office_id = :office_id and stage = 'QUEUED'
order by order_priority desc, position, created_at, job_id limit :limit;

-- running: the work that runs now
select {forecast.columns} from jobs where stage = 'RUNNING' and finished_at is null order by worker_id limit :limit;

-- chains: every job of some chains, by a JSON object whose keys are the first jobs
select {forecast.columns} from jobs
where job_id in (select key from json_each(:chain_ids))
    or (retry_of is not null and chain_id in (select key from json_each(:chain_ids)));

-- members: some members of a group, by their places
select {forecast.columns} from jobs
where group_id = :group_id and sequence between :first and :last and retry_of is null;

-- runs: the runs of some jobs
select run_id, job_id, started_at, timeout_at, placement, began_at from runs where job_id in (select key from json_each(:job_ids));

-- edges: the unmet prerequisites of some jobs
select job_id, depends_on, chain_id, is_met from dependencies
where is_met = 0 and job_id in (select key from json_each(:job_ids));

-- groups: some groups
select {groups.columns} from job_groups where group_id in (select key from json_each(:group_ids));

-- queued_offices: offices with queued jobs
select office_id from offices
where exists (select 1 from jobs where jobs.office_id = offices.office_id and jobs.stage = 'QUEUED')
order by office_id limit :limit;

-- scheduled_offices: the offices whose schedules fire next
select distinct office_id from (
    select office_id from schedules where enabled = 1 and next_trigger_at is not null
    order by next_trigger_at, schedule_id limit :limit
) found order by office_id;

-- schedules: the schedules of some offices that fire next
select {schedules.columns} from schedules
where enabled = 1 and next_trigger_at is not null and office_id in (select key from json_each(:office_ids))
order by next_trigger_at, schedule_id limit :limit;

-- templates: some templates
select {templates.columns} from job_templates where template_id in (select key from json_each(:template_ids));

-- offices: the settings of some offices that dispatch uses
select office_id, name, status, is_paused, max_concurrent_jobs, role_limits, retry_policy, cancel_mode,
    on_dependency_failure, created_at, priority_aging_seconds, last_position, turn
from offices where office_id in (select key from json_each(:office_ids));

-- lanes: some lanes
select {lanes.columns} from lanes where lane_id in (select cast(key as bigint) from json_each(:lane_ids));

-- lanes_of: the lanes of some offices
select office_id, shared from lanes where office_id in (select key from json_each(:office_ids));

-- limits: the limits, except those of roles, keys and affinities
select limit_key, capacity, used from limits
where limit_key not like 'role:%' and limit_key not like 'key:%' and limit_key not like 'affinity:%';

-- pauses: the pauses across offices, and since when each holds
select scope, name, paused_at from pauses;

-- callers: direct callers who wait, and those whose work runs
select run_id, arrival, office_id, lane_id, job_type, status, timeout_seconds, created_at, wait_until, started_at,
    timeout_at, worker_id
from direct_executions where status = 'WAITING'
union all
select run_id, arrival, office_id, lane_id, job_type, status, timeout_seconds, created_at, wait_until, started_at,
    timeout_at, worker_id
from direct_executions where status = 'RUNNING';

-- reservations: the active reservations
select {reservations.columns} from reservations
where status = 'ACTIVE';

-- durations: the durations of the newest completed runs, by type, newest first, without the queues of engines
select job_type, micros, case when length(params) <= 2000 then params end from (
    select jobs.job_type, newest.finished_at - newest.began_at as micros, jobs.params, newest.finished_at from (
        select job_id, status, coalesce(began_at, started_at) as began_at, finished_at from runs
        order by run_id desc limit :limit
    ) newest join jobs on jobs.job_id = newest.job_id
    where newest.status = 'COMPLETED'
    union all
    select job_type, finished_at - started_at, params, finished_at from (
        select job_type, status, started_at, finished_at, params from direct_executions order by arrival desc limit :limit
    ) newest where status = 'COMPLETED'
) found order by finished_at desc;

-- params: the parameters of some jobs and direct requests, by job id and by run id, except long ones
select job_id, params from jobs where job_id in (select key from json_each(:job_ids)) and length(params) <= 2000
union all
select run_id, params from direct_executions
where run_id in (select key from json_each(:job_ids)) and length(params) <= 2000;

-- ahead: the number of queued jobs before a place in an office's queue, counted up to a limit
select count(*) from (
    select job_id from (
        select job_id from jobs where office_id = :office_id and stage = 'QUEUED' and order_priority > :priority limit :limit
    ) more_urgent
    union all
    select job_id from (
        select job_id from jobs where office_id = :office_id and stage = 'QUEUED' and order_priority = :priority
            and (position, created_at, job_id) < (:position, :created_at, :job_id) limit :limit
    ) earlier
    limit :limit
) found;

-- unmet: the first unmet prerequisites of a job
select depends_on, chain_id from dependencies where job_id = :job_id and is_met = 0 order by depends_on limit :limit;

-- holders: running jobs as holders of limits, oldest first
select job_id, title, job_type, started_at, lane_id, worker_id from jobs
where stage = 'RUNNING' and finished_at is null order by started_at, job_id limit :limit;

-- direct_holders: running direct executions as holders of limits, oldest first
select run_id, job_type, started_at, lane_id, node_id from direct_executions
where status = 'RUNNING' order by started_at, run_id;
