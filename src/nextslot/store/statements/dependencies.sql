-- insert: stores an edge: a job waits for the chain of another job
insert into dependencies (job_id, depends_on, chain_id, is_met, name)
values (:job_id, :depends_on, :chain_id, :is_met, :name);

-- inputs: the prerequisites of a job, each with its name and the job of its chain that succeeded
select coalesce(dependencies.name, dependencies.depends_on), jobs.job_id from dependencies
join jobs on jobs.job_id = dependencies.chain_id
    or (jobs.retry_of is not null and jobs.chain_id = dependencies.chain_id)
where dependencies.job_id = :job_id and jobs.outcome in ('COMPLETED', 'SKIPPED')
order by dependencies.depends_on;

-- input_runs: the runs of some jobs
select {runs.columns} from runs where job_id in (select key from json_each(:job_ids));

-- meet: marks the edges to a chain that has succeeded as met, once
update dependencies set is_met = 1 where chain_id = :chain_id and is_met = 0 returning job_id;

-- waiting_for: the jobs that wait for a chain
select dependencies.job_id, jobs.on_dependency_failure from dependencies
join jobs on jobs.job_id = dependencies.job_id
where dependencies.chain_id = :chain_id and dependencies.is_met = 0 and jobs.stage = 'QUEUED'
order by dependencies.job_id;

-- doomed_by: the jobs that wait for one of these chains and are cancelled if the chain does not succeed
select distinct dependencies.job_id from dependencies
join jobs on jobs.job_id = dependencies.job_id
where dependencies.chain_id in (select key from json_each(:chain_ids)) and dependencies.is_met = 0
    and jobs.stage = 'QUEUED' and jobs.on_dependency_failure = 'cancel';

-- has_succeeded: those of these chains with a job that completed or was skipped
select distinct chain_id from jobs
where (job_id in (select key from json_each(:chain_ids))
        or (retry_of is not null and chain_id in (select key from json_each(:chain_ids))))
    and outcome in ('COMPLETED', 'SKIPPED');

-- dead_chains: those of these chains that ended without success: their last job failed or was cancelled, and gets no retry
select distinct chain_id, job_id from jobs
where (job_id in (select key from json_each(:chain_ids))
        or (retry_of is not null and chain_id in (select key from json_each(:chain_ids))))
    and (stage = 'CANCELLED' or decision in ('permanent', 'cancelled'))
    and not exists (select 1 from jobs later where later.retry_of = jobs.job_id);
