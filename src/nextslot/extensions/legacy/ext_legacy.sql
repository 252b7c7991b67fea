-- chains: what makes a chain one of the old service's jobs, with its last job
from jobs root join jobs ending on ending.job_id = coalesce(
    (select link.job_id from jobs link where link.chain_id = root.job_id and link.retry_of is not null
        and not exists (select 1 from jobs later where later.retry_of = link.job_id)),
    root.job_id)
where root.job_type in ('story', 'research') and root.office_id = 'default' and root.retry_of is null
    and (:job_type = '' or root.job_type = :job_type)
    and (:status = '' or :status = case
        when ending.stage = 'RUNNING' and ending.outcome is not null then ending.outcome else ending.stage end)

-- page: the newest chains of the old types, as (first job, last job)
select root.job_id, ending.job_id {ext_legacy.chains}
order by root.created_at desc, root.job_id desc limit :limit;

-- total: how many there are
select count(*) {ext_legacy.chains};

-- all: how many there are of both types of any status, from the index alone
select count(*) from jobs
where job_type in ('story', 'research') and office_id = 'default' and retry_of is null;

-- running: the chains of the old types that run now
select chain_id, job_id from jobs
where stage = 'RUNNING' and finished_at is null and office_id = 'default' and job_type in ('story', 'research')
order by started_at, job_id;

-- runs: the runs of some jobs
select {runs.columns} from runs where job_id in (select key from json_each(:job_ids));

-- undelivered: why the webhooks of some jobs have not been delivered, the newest last
select job_id, reason from deliveries
where job_id in (select key from json_each(:job_ids)) and is_own = 1 and status <> 'DELIVERED' and reason is not null
order by delivery_id;

-- cards: the newest results of COMPLETED research in an office before a time, of jobs and of direct callers
select result from (
    select runs.result, runs.finished_at from jobs join runs on runs.job_id = jobs.job_id
    where jobs.job_type = 'research' and jobs.outcome = 'COMPLETED' and jobs.office_id = :office_id
    union all
    select result, finished_at from direct_executions
    where job_type = 'research' and status = 'COMPLETED' and office_id = :office_id
) found where result is not null and finished_at < :before order by finished_at desc limit :limit;
