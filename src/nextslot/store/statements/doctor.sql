-- lanes: every lane with its counters, and whether its office dispatches
select lanes.lane_id, lanes.office_id, lanes.local, lanes.shared, lanes.class_key, lanes.ready, lanes.is_open,
    lanes.running, lanes.first_rank, lanes.first_position, offices.is_paused
from lanes join offices on offices.office_id = lanes.office_id
order by lanes.lane_id;

-- rated: limits whose rate holds work back
select limit_key from rates where wake_at is not null;

-- firsts: the place of the first ready job of each lane
select lane_id, -order_priority, position from (
    select lane_id, order_priority, position,
        row_number() over (partition by lane_id order by order_priority desc, position, created_at, job_id) as number
    from jobs where stage = 'QUEUED' and unmet = 0 and is_due = 1 and is_turn = 1
) ranked where number = 1;

-- caller_lanes: the lanes in which direct callers wait
select distinct lane_id, office_id from direct_executions where status = 'WAITING';

-- ready: the number of ready jobs by lane
select lane_id, count(*) from jobs
where stage = 'QUEUED' and unmet = 0 and is_due = 1 and is_turn = 1 group by lane_id;

-- running: the number of running jobs by lane
select lane_id, count(*) from jobs where stage = 'RUNNING' and finished_at is null group by lane_id;

-- direct_running: the number of running direct executions by lane
select lane_id, count(*) from direct_executions where status = 'RUNNING' group by lane_id;

-- repair_lane: sets the counters of a lane to the counted numbers
update lanes set ready = :ready, is_open = :is_open, running = :running, first_rank = :first_rank,
    first_position = :first_position
where lane_id = :lane_id;

-- repair_limit: sets the counter of a limit to the counted number
update limits set used = :used where limit_key = :limit_key;

-- runless: running jobs whose run does not exist or has ended (spec 2.10)
select job_id from jobs
where stage = 'RUNNING' and finished_at is null
    and not exists (select 1 from runs where runs.job_id = jobs.job_id and runs.status is null)
order by job_id limit 100;

-- unfinished_runs: runs that have not ended although their job has
select runs.run_id from runs join jobs on jobs.job_id = runs.job_id
where runs.status is null and jobs.finished_at is not null
order by runs.run_id limit 100;

-- other_outcomes: jobs whose outcome differs from that of their run, or that have no outcome
select job_id from jobs
where outcome is not null
    and not exists (select 1 from runs where runs.job_id = jobs.job_id and runs.status = jobs.outcome)
order by job_id limit 100;

-- shared_workers: workers that run two jobs (INV-003)
select worker_id from jobs where stage = 'RUNNING' and finished_at is null
group by worker_id having count(*) > 1 order by worker_id limit 100;

-- forked_chains: jobs with two retries
select retry_of from jobs where retry_of is not null group by retry_of having count(*) > 1 order by retry_of limit 100;

-- miscounted_waits: queued jobs whose count of unmet prerequisites differs from the stored edges
select job_id from jobs
where stage = 'QUEUED' and unmet <> is_awaiting + (
    select count(*) from dependencies where dependencies.job_id = jobs.job_id and is_met = 0)
order by job_id limit 100;

-- forgotten_waits: queued jobs that still wait for a chain that has succeeded
select distinct dependencies.job_id
from dependencies join jobs on jobs.job_id = dependencies.job_id
where dependencies.is_met = 0 and jobs.stage = 'QUEUED' and exists (
    select 1 from jobs done
    where (done.job_id = dependencies.chain_id or (done.chain_id = dependencies.chain_id and done.retry_of is not null))
        and done.outcome in ('COMPLETED', 'SKIPPED'))
order by dependencies.job_id limit 100;

-- endless_waits: queued jobs that wait for a time although none is stored
select job_id from jobs where stage = 'QUEUED' and is_due = 0 and scheduled_for is null order by job_id limit 100;

-- miscounted_groups: groups whose number of jobs is wrong
select group_id from job_groups
where members <> (select count(*) from jobs where jobs.group_id = job_groups.group_id and retry_of is null)
order by group_id limit 100;

-- forgotten_reservations: active reservations of callers who have left or do not exist
select reservations.reservation_id
from reservations left join direct_executions on direct_executions.run_id = reservations.run_id
where reservations.status = 'ACTIVE'
    and (direct_executions.run_id is null or direct_executions.status <> 'WAITING')
order by reservations.reservation_id limit 100;

-- suspended: the reason for which the rules were suspended, if they still are
select reason from maintenance;

-- sums: every lane's part of its office's statistics, as stored
select lane_id, office_id, running, chains, completed, skipped, failed, cancelled, completion_us
from lanes order by lane_id;

-- counted_sums: the same, counted from all jobs; a chain counts in the lane of its last job, until that job is retried
select jobs.lane_id,
    sum(case when jobs.stage = 'RUNNING' and jobs.finished_at is null then 1 else 0 end),
    sum(case when jobs.retry_of is null then 1 else 0 end),
    sum(case when jobs.outcome = 'COMPLETED' then 1 else 0 end),
    sum(case when jobs.outcome = 'SKIPPED' then 1 else 0 end),
    sum(case when jobs.stage = 'RUNNING' and jobs.decision in ('permanent', 'cancelled') and later.job_id is null
        then 1 else 0 end),
    sum(case when jobs.stage = 'CANCELLED' and later.job_id is null then 1 else 0 end)
from jobs left join jobs later on later.retry_of = jobs.job_id
group by jobs.lane_id;

-- counted_completions: microseconds from the first start of each completed chain to its end, summed by lane
select lane_id, sum(case when finished_at > began then finished_at - began else 0 end)
from (
    select jobs.lane_id, jobs.finished_at, (
        select min(first.started_at) from jobs first
        where first.job_id = jobs.chain_id or (first.chain_id = jobs.chain_id and first.retry_of is not null)) as began
    from jobs where jobs.outcome = 'COMPLETED') as completed
group by lane_id;

-- repair_sums: sets the statistics of a lane to the counted numbers
update lanes set chains = :chains, completed = :completed, skipped = :skipped, failed = :failed,
    cancelled = :cancelled, completion_us = :completion_us
where lane_id = :lane_id;

-- left_devices: devices that are held for workers that run nothing
select resource || ' ' || device from device_holds
where not exists (select 1 from jobs where jobs.worker_id = device_holds.worker_id and jobs.stage = 'RUNNING'
        and jobs.finished_at is null)
    and not exists (select 1 from direct_executions where direct_executions.worker_id = device_holds.worker_id
        and direct_executions.status = 'RUNNING')
order by 1 limit 100;

-- torn_jobs: jobs whose start or end differs from that of their run (spec 2.10)
select jobs.job_id from jobs left join runs on runs.job_id = jobs.job_id
where (jobs.stage = 'QUEUED') <> (runs.run_id is null) and jobs.stage <> 'CANCELLED'
    or jobs.started_at is distinct from runs.started_at
    or (runs.run_id is not null and jobs.finished_at is distinct from runs.finished_at)
order by jobs.job_id limit 100;

-- other_snapshots: runs whose parameters differ from those of their job (INV-001)
select runs.run_id from runs join jobs on jobs.job_id = runs.job_id
where runs.params_snapshot <> jobs.params order by runs.run_id limit 100;

-- shared_slots: slots that a running job and a direct execution share (INV-003)
select jobs.worker_id from jobs join direct_executions on direct_executions.worker_id = jobs.worker_id
where jobs.stage = 'RUNNING' and jobs.finished_at is null and direct_executions.status = 'RUNNING'
order by jobs.worker_id limit 100;

-- shared_places: queued jobs that share a place with another one (INV-004); jobs that age may reach the same place
select max(job_id) from jobs where stage = 'QUEUED'
    and office_id in (select office_id from offices where last_position is null)
group by office_id, priority, position having count(*) > 1 order by 1 limit 100;

-- unaged: ready jobs without a next step in an office that ages its jobs (spec 3.13)
select jobs.job_id from jobs join offices on offices.office_id = jobs.office_id
where offices.priority_aging_seconds is not null and offices.aging_from is null and jobs.stage = 'QUEUED'
    and jobs.unmet = 0 and jobs.is_due = 1 and jobs.is_turn = 1 and jobs.order_priority < 999999 and jobs.ages_at is null
order by jobs.job_id limit 100;

-- undecided: failures without a decision about what follows (spec 6.6)
select job_id from jobs where decision = 'undecided' order by job_id limit 100;

-- lost_retries: failures that were to be retried but have no retry (DEC-007)
select job_id from jobs
where decision = 'retry' and not exists (select 1 from jobs later where later.retry_of = jobs.job_id)
order by job_id limit 100;

-- unstored_outcomes: runs, last of their chains, that failed only because their outcome could not be stored
select runs.run_id from runs join jobs on jobs.job_id = runs.job_id
where runs.status = 'FAILED' and runs.error like 'its outcome could not be stored:%'
    and jobs.decision = 'permanent' and not exists (select 1 from jobs later where later.retry_of = jobs.job_id)
order by runs.run_id limit 100;

-- with_files: the newest runs since a time that have left files; after a crash, a log may exist or not
select run_id, log_path is not null from runs
where finished_at >= :since and failure_kind is distinct from 'crash'
    and (log_path is not null or exists (select 1 from artifacts where artifacts.run_id = runs.run_id))
order by run_id desc limit :limit;

-- retried_successes: jobs that retry a job that succeeded
select jobs.job_id from jobs join jobs before on before.job_id = jobs.retry_of
where before.outcome in ('COMPLETED', 'SKIPPED') or before.finished_at is null or before.chain_id <> jobs.chain_id
order by jobs.job_id limit 100;

-- early_releases: jobs that stopped waiting although a prerequisite has not succeeded (US-JS01)
select distinct dependencies.job_id from dependencies
where dependencies.is_met = 1 and not exists (
    select 1 from jobs done
    where (done.job_id = dependencies.chain_id or (done.chain_id = dependencies.chain_id and done.retry_of is not null))
        and done.outcome in ('COMPLETED', 'SKIPPED'))
order by dependencies.job_id limit 100;

-- early_starts: jobs that started before a job for which they wait
select distinct jobs.job_id from jobs join dependencies on dependencies.job_id = jobs.job_id
where jobs.worker_id is not null and dependencies.is_met = 0 order by jobs.job_id limit 100;

-- miscounted_ends: groups whose counts of ended members are wrong (INV-006)
select job_groups.group_id
from job_groups join (
    select last.group_id,
        sum(case when last.finished_at is not null and coalesce(last.decision, 'none') not in ('retry', 'undecided')
            then 1 else 0 end) as ended,
        sum(case when last.outcome in ('COMPLETED', 'SKIPPED') then 1 else 0 end) as succeeded,
        sum(case when last.stage = 'CANCELLED' and last.cancel_requested_at is not null then 1 else 0 end) as cancelled
    from jobs last
    where last.group_id is not null and not exists (select 1 from jobs later where later.retry_of = last.job_id)
    group by last.group_id) as counted on counted.group_id = job_groups.group_id
where job_groups.ended <> counted.ended or job_groups.succeeded <> counted.succeeded
    or job_groups.cancelled <> counted.cancelled
order by job_groups.group_id limit 100;

-- misjudged_groups: groups whose status does not follow from their members (INV-006)
select group_id from job_groups
where status <> case
        when ended < members and started_at is null then 'QUEUED'
        when ended < members then 'RUNNING'
        when succeeded = members then 'COMPLETED'
        when cancelled = members then 'CANCELLED'
        else 'PARTIAL' end
order by group_id limit 100;

-- unreserved_callers: offices with waiting callers whose first caller has no reservation (DEC-004)
select office_id from direct_executions
where status = 'WAITING' and not exists (
    select 1 from reservations
    where reservations.office_id = direct_executions.office_id and reservations.status = 'ACTIVE')
group by office_id order by office_id limit 100;

-- strange_firings: occurrences whose job belongs to another schedule, or to another group than the occurrence made
select occurrences.job_id from occurrences join jobs on jobs.job_id = occurrences.job_id
where jobs.schedule_id is distinct from occurrences.schedule_id
    or jobs.group_id is distinct from occurrences.group_id
order by occurrences.job_id limit 100;

-- fired_twice: jobs that two occurrences name as their own
select job_id from occurrences where job_id is not null group by job_id having count(*) > 1 order by job_id limit 100;

-- unplanned: enabled schedules with no occurrence planned after the last one in the ledger
select schedule_id from schedules
where enabled = 1 and next_trigger_at is not null and next_trigger_at <= accounted_until
order by schedule_id limit 100;

-- misjudged_webhooks: jobs whose webhook status does not follow from their kept messages
select job_id from jobs join (
    select deliveries.job_id as told,
        case when sum(case when status = 'PENDING' then 1 else 0 end) > 0 then 'pending'
            when sum(case when status = 'FAILED' then 1 else 0 end) > 0 then 'failed' else 'delivered' end as result
    from deliveries where is_own = 1 and deliveries.job_id is not null group by deliveries.job_id) as own on own.told = jobs.job_id
where webhook_status <> own.result order by job_id limit 100;

-- gaps: whether event numbers are missing between the first and the last
select max(seq) from events having count(*) > 0 and max(seq) - min(seq) + 1 <> count(*);

-- untold: jobs with more or fewer events than state changes, of those whose first event is still kept
select jobs.job_id from jobs join (
    select job_id, sum(case when type = 'job_queued' then 1 else 0 end) as queued,
        sum(case when type = 'job_started' then 1 else 0 end) as started,
        sum(case when type in ('job_completed', 'job_failed', 'job_timeout', 'job_skipped', 'job_cancelled', 'job_parked')
            then 1 else 0 end) as ended
    from events where job_id is not null group by job_id) as told on told.job_id = jobs.job_id
where told.queued > 1
    or (told.queued = 1 and told.started <> case when jobs.worker_id is null then 0 else 1 end)
    or (told.queued = 1 and told.ended <> case when jobs.finished_at is null then 0 else 1 end)
order by jobs.job_id limit 100;

-- unheard: jobs without any event, although no event was ever purged
select job_id from jobs
where (select min(seq) from events) = 1 and not exists (
    select 1 from events where events.job_id = jobs.job_id and events.type = 'job_queued')
order by job_id limit 100;

-- told_in_disorder: jobs whose end was reported before their start, or their start before their queueing
select started.job_id from events started
join events queued on queued.job_id = started.job_id and queued.type = 'job_queued'
where started.type in ('job_started', 'job_completed', 'job_failed', 'job_timeout', 'job_skipped', 'job_cancelled',
    'job_parked')
    and started.seq < queued.seq
order by started.job_id limit 100;

-- early_turns: members of sequential groups that started before the member before them had ended
select jobs.job_id from jobs join job_groups on job_groups.group_id = jobs.group_id and job_groups.mode = 'sequential'
where jobs.worker_id is not null and jobs.retry_of is null
    and exists (select 1 from jobs before where before.group_id = jobs.group_id and before.sequence = jobs.sequence - 1)
    and not exists (
        select 1 from jobs done
        where done.group_id = jobs.group_id and done.sequence = jobs.sequence - 1 and done.finished_at is not null
            and coalesce(done.decision, 'none') not in ('retry', 'undecided'))
order by jobs.job_id limit 100;
