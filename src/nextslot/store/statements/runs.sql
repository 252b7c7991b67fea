-- begin: stores the run of a queued job, with the parameters that the job has now
insert into runs (run_id, job_id, template_id, params_snapshot, started_at, timeout_at, session_id, is_inside, devices)
select :run_id, job_id, template_id, params, :now, :now + cast(timeout_seconds * 1000000 as bigint), :session_id, :is_inside,
    :devices
from jobs where job_id = :job_id and stage = 'QUEUED';

-- finish: ends a run, once: does nothing if the run has ended
update runs set status = :status, finished_at = :now, exit_code = :exit_code, error = :error,
    failure_kind = :failure_kind, reason = :reason, log_path = coalesce(log_path, :log_path),
    session_id = coalesce(session_id, :session_id), result = :result
where run_id = :run_id and (job_id = :job_id) is true and status is null;

-- park: stores that an unfinished run waits for a signal once it has ended
update runs set park = :park where run_id = :run_id and status is null;

-- set_session: stores the session of an unfinished run: one that it continues, or one that its program has named
update runs set session_id = :session_id where run_id = :run_id and status is null;

-- set_silent: stores since when an unfinished run is silent; null if it is not
update runs set silent_since = :since where run_id = :run_id and status is null;

-- get: one run
select {runs.columns} from runs where run_id = :run_id;

-- of_job: the run of a job
select {runs.columns} from runs where job_id = :job_id;

-- repair: stores the run of a job that is RUNNING without one (spec 15.2); only under maintenance
insert into runs (run_id, job_id, template_id, params_snapshot, started_at)
select :run_id, job_id, template_id, params, started_at from jobs where job_id = :job_id;

-- inside: the number of works in the process of a node, or of all; direct executions always count as inside
select (select count(*) from jobs join runs on runs.job_id = jobs.job_id
    where jobs.stage = 'RUNNING' and jobs.finished_at is null and runs.status is null and runs.is_inside = 1
        and (cast(:node_id as text) is null or (worker_id >= :node_id || '/slot-' and worker_id < :node_id || '/slot.')))
+ (select count(*) from direct_executions where status = 'RUNNING' and node_id = coalesce(:node_id, node_id));

-- note_company: stores how many other works were inside a process that died, once for each run inside it
update runs set beside = :beside where status is null and is_inside = 1 and beside is null and job_id in (
    select job_id from jobs where jobs.stage = 'RUNNING' and finished_at is null and (cast(:node_id as text) is null
        or (worker_id >= :node_id || '/slot-' and worker_id < :node_id || '/slot.')));

-- next_timeout: when the next unfinished run times out
select min(timeout_at) from runs where status is null and timeout_at is not null and timeout_at > :now;

-- overdue: unfinished runs that have timed out
select run_id from runs where status is null and timeout_at <= :now order by timeout_at limit :limit;

-- add_artifact: stores a file that the run produced
insert into artifacts (run_id, name, path, size) values (:run_id, :name, :path, :size);

-- artifacts: the files that a run produced
select name, path, size from artifacts where run_id = :run_id order by name;
