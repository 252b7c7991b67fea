-- count: adds jobs that ended with the same outcome in a minute
insert into rollups_recent (minute, office_id, job_type, kind, outcome, wait, duration, jobs)
values (:minute, :office_id, :job_type, :kind, :outcome, :wait, :duration, :jobs)
on conflict (minute, office_id, job_type, kind, outcome, wait, duration)
do update set jobs = rollups_recent.jobs + excluded.jobs;

-- take_recent: removes and returns the counts of minutes before a time
delete from rollups_recent where minute < :before
returning minute, office_id, job_type, kind, outcome, wait, duration, jobs;

-- recent: the counts of the last minutes in a range
select minute, office_id, job_type, kind, outcome, wait, duration, jobs from rollups_recent
where minute >= :begin and minute < :until and (:office_id = '' or office_id = :office_id);

-- columns: the columns of a stored rollup besides its step
at, office_id, job_type, kind, outcome, jobs, waits, durations

-- range: the rollups of one step in a range
select {rollups.columns} from rollups where step = :step and at >= :begin and at < :until;

-- range_of_office: the rollups of one office and one step in a range
select {rollups.columns} from rollups
where office_id = :office_id and step = :step and at >= :begin and at < :until;

-- take: removes and returns the rollups of one step in a range
delete from rollups where step = :step and at >= :begin and at < :until returning {rollups.columns};

-- put: stores a rollup
insert into rollups (step, {rollups.columns})
values (:step, :at, :office_id, :job_type, :kind, :outcome, :jobs, :waits, :durations)
on conflict (step, at, office_id, job_type, kind, outcome)
do update set jobs = excluded.jobs, waits = excluded.waits, durations = excluded.durations;

-- oldest: the first rollup of a step
select min(at) from rollups where step = :step;

-- sample: stores the number of jobs in the queue, by office and type and in all, once for each minute
insert into queue_depths (step, at, office_id, job_type, depth)
select 60, cast(:minute as bigint), lanes.office_id, lanes.job_type, sum({rollups.queued})
from lanes group by lanes.office_id, lanes.job_type having sum({rollups.queued}) <> 0
union all
select 60, cast(:minute as bigint), '', '', coalesce(sum({rollups.queued}), 0) from lanes where lanes.lane_id >= 0
on conflict (step, at, office_id, job_type) do nothing;

-- is_sampled: whether the queue depth at the beginning of a minute is stored
select 1 from queue_depths where step = 60 and at = :minute and office_id = '' and job_type = '';

-- queued: the number of jobs of a lane in the queue; only the sum over an office and a type means something
lanes.chains - lanes.completed - lanes.skipped - lanes.failed - lanes.cancelled - lanes.running

-- depth_now: the number of jobs in the queue now
select coalesce(sum({rollups.queued}), 0) from lanes
where (:office_id = '' or lanes.office_id = :office_id) and (:job_type = '' or lanes.job_type = :job_type);

-- depths: the stored queue depths of one step in a range, of an office and a type or, if these are empty, of all
select at, sum(case
    when :office_id = '' and :job_type = '' then case when office_id = '' then depth else 0 end
    when office_id <> '' and (:office_id = '' or office_id = :office_id) and (:job_type = '' or job_type = :job_type)
        then depth
    else 0 end)
from queue_depths where step = :step and at >= :begin and at <= :until group by at order by at;

-- next_sample: when the next queue depth of a step was stored
select min(at) from queue_depths where step = :step and at > :after;

-- oldest_depth: when the first queue depth of a step was stored
select min(at) from queue_depths where step = :step;

-- keep_depth: stores as the queue depth of a larger span that of its first minute
insert into queue_depths (step, at, office_id, job_type, depth)
select cast(:larger as bigint), kept.at, kept.office_id, kept.job_type, kept.depth from queue_depths kept
where kept.step = :step and kept.at = :at
on conflict (step, at, office_id, job_type) do nothing;

-- drop_depths: deletes the queue depths of one step in a range
delete from queue_depths where step = :step and at >= :begin and at < :until;

-- bounds: the times from which rollups can be compared with history
select name, at from rollup_bounds;

-- set_bound: stores that nothing before this time can be compared
insert into rollup_bounds (name, at) values (:name, :at)
on conflict (name) do update set at = excluded.at where rollup_bounds.at < excluded.at;

-- reset_bound: stores that rollups were computed again from this time on
update rollup_bounds set at = :at where name = :name;

-- clear_from: deletes the rollups from a time on, before they are computed again
delete from rollups where at >= :begin;

-- clear_recent: deletes the counts of the last minutes, before they are computed again
delete from rollups_recent where minute >= :begin;

-- larger_spans: the hours and days that have stored rollups
select distinct step, at from rollups where step > 60;

-- ended_jobs: ended jobs, page by page, with the values that a rollup counts
select job_id, office_id, job_type, case when stage = 'CANCELLED' then 'CANCELLED' else outcome end,
    queued_at, scheduled_for, case when worker_id is null then null
        else coalesce((select began_at from runs where runs.job_id = jobs.job_id), started_at) end, finished_at
from jobs where job_id > :after and finished_at is not null order by job_id limit :limit;

-- ended_direct: ended direct executions with the same values
select run_id, office_id, job_type, status, created_at, null, started_at, finished_at
from direct_executions where run_id > :after and finished_at is not null order by run_id limit :limit;
