-- lanes: every lane with its counters, and whether its office dispatches
select lanes.lane_id, lanes.office_id, lanes.local, lanes.shared, lanes.ready, lanes.is_open, lanes.running,
    offices.is_paused,
    (select count(*) from direct_executions where direct_executions.office_id = lanes.office_id and status = 'WAITING')
from lanes join offices on offices.office_id = lanes.office_id
order by lanes.lane_id;

-- ready: jobs that are free to go, counted by lane
select lane_id, count(*) from jobs
where status = 'QUEUED' and unmet = 0 and is_due = 1 and is_turn = 1 group by lane_id;

-- running: jobs that run, counted by lane
select lane_id, count(*) from jobs where status = 'RUNNING' and finished_at is null group by lane_id;

-- direct_running: direct executions that run, counted by lane
select lane_id, count(*) from direct_executions where status = 'RUNNING' group by lane_id;

-- repair_lane: the counters of a lane as they were counted
update lanes set ready = :ready, is_open = :is_open, running = :running where lane_id = :lane_id;

-- repair_limit: the counter of a limit as it was counted
update limits set used = :used where limit_key = :limit_key;

-- runless: running jobs whose run is not there, or has ended (5.1)
select job_id from jobs
where status = 'RUNNING' and finished_at is null
    and not exists (select 1 from runs where runs.job_id = jobs.job_id and runs.status is null)
order by job_id limit 100;

-- unfinished_runs: runs that have not ended although their job has
select runs.run_id from runs join jobs on jobs.job_id = runs.job_id
where runs.status is null and jobs.finished_at is not null
order by runs.run_id limit 100;

-- other_outcomes: jobs that ended otherwise than their run, or without one
select job_id from jobs
where outcome is not null
    and not exists (select 1 from runs where runs.job_id = jobs.job_id and runs.status = jobs.outcome)
order by job_id limit 100;

-- shared_workers: workers that run two jobs (INV-003)
select worker_id from jobs where status = 'RUNNING' and finished_at is null
group by worker_id having count(*) > 1 order by worker_id limit 100;

-- forked_chains: jobs that were retried twice
select retry_of from jobs where retry_of is not null group by retry_of having count(*) > 1 order by retry_of limit 100;

-- miscounted_waits: queued jobs that wait for more, or for fewer, than is stored of what they wait for
select job_id from jobs
where status = 'QUEUED' and unmet <> (
    select count(*) from dependencies where dependencies.job_id = jobs.job_id and is_met = 0)
order by job_id limit 100;

-- forgotten_waits: queued jobs that wait for a chain that has succeeded
select distinct dependencies.job_id
from dependencies join jobs on jobs.job_id = dependencies.job_id
where dependencies.is_met = 0 and jobs.status = 'QUEUED' and exists (
    select 1 from jobs done where done.chain_id = dependencies.chain_id and done.outcome in ('COMPLETED', 'SKIPPED'))
order by dependencies.job_id limit 100;

-- endless_waits: queued jobs that wait for a time that is not stored
select job_id from jobs where status = 'QUEUED' and is_due = 0 and scheduled_for is null order by job_id limit 100;

-- miscounted_groups: groups with more or fewer jobs than they should have
select group_id from job_groups
where members <> (select count(*) from jobs where jobs.group_id = job_groups.group_id and retry_of is null)
order by group_id limit 100;

-- forgotten_reservations: reservations that are held for somebody who has left
select reservations.reservation_id
from reservations join direct_executions on direct_executions.direct_id = reservations.direct_id
where reservations.status = 'ACTIVE' and direct_executions.finished_at is not null
order by reservations.reservation_id limit 100;

-- suspended: whether the rules were left suspended
select reason from maintenance;
