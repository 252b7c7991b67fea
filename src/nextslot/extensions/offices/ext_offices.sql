-- sums: what an office's statistics are made of: its lanes, however many jobs they have had
select coalesce(sum(ready), 0), coalesce(sum(running), 0), coalesce(sum(chains), 0), coalesce(sum(completed), 0),
    coalesce(sum(skipped), 0), coalesce(sum(failed), 0), coalesce(sum(cancelled), 0), coalesce(sum(completion_us), 0)
from lanes where office_id = :office_id;

-- roots: a page of an office's chains by their first jobs, oldest first
select job_id, created_at from jobs
where office_id = :office_id and job_id >= '' and retry_of is null and (created_at, job_id) > (:created_at, :job_id)
order by created_at, job_id limit :limit;

-- roots_of_task: a page of a task's chains by their first jobs, oldest first
select job_id, created_at from jobs
where task_id = :task_id and office_id = :office_id and retry_of is null
    and (created_at, job_id) > (:created_at, :job_id)
order by created_at, job_id limit :limit;

-- failed: a page of an office's chains that failed for good
select chain_id from jobs
where office_id = :office_id and decision in ('permanent', 'cancelled') and chain_id > :after
    and stage <> 'CANCELLED' and not exists (select 1 from jobs later where later.retry_of = jobs.job_id)
order by chain_id limit :limit;

-- cancelled: a page of an office's chains that were cancelled
select chain_id from jobs
where office_id = :office_id and stage = 'CANCELLED' and chain_id > :after
    and not exists (select 1 from jobs later where later.retry_of = jobs.job_id)
order by chain_id limit :limit;

-- later: the retries of several chains, by a JSON object whose keys are the chains
select {jobs.columns} from jobs where retry_of is not null and chain_id in (select key from json_each(:chain_ids));

-- runs_of: what the office shows of the runs of several jobs
select job_id, run_id, status, started_at, timeout_at, finished_at, session_id, error, failure_kind from runs
where job_id in (select key from json_each(:job_ids));

-- unmet: (job, prerequisite's chain) of several jobs that wait
select job_id, chain_id from dependencies where is_met = 0 and job_id in (select key from json_each(:job_ids))
order by job_id, depends_on;
