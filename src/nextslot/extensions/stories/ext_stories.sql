-- results: the newest results of COMPLETED work of a type in an office before a time, of jobs and of direct callers
select result from (
    select runs.result, runs.finished_at from jobs join runs on runs.job_id = jobs.job_id
    where jobs.job_type = :job_type and jobs.outcome = 'COMPLETED' and jobs.office_id = :office_id
    union all
    select result, finished_at from direct_executions
    where job_type = :job_type and status = 'COMPLETED' and office_id = :office_id
) found where result is not null and finished_at < :before order by finished_at desc limit :limit;

-- works: a page of COMPLETED work of a type, the newest first: run and job, or a direct execution and no job
select found.work_id, found.job_id, found.office_id, found.finished_at,
    coalesce(jobs.params, direct_executions.params), coalesce(runs.result, direct_executions.result),
    coalesce(direct_executions.direct_id, direct_executions.run_id),
    coalesce(jobs.worker_id, direct_executions.worker_id)
from (
    select work_id, job_id, office_id, finished_at from (
        select runs.run_id as work_id, jobs.job_id, jobs.office_id, runs.finished_at
        from jobs join runs on runs.job_id = jobs.job_id
        where jobs.job_type = :job_type and jobs.outcome = 'COMPLETED' and runs.result is not null
        union all
        select run_id, null, office_id, finished_at from direct_executions
        where job_type = :job_type and status = 'COMPLETED' and result is not null
    ) works
    where (finished_at, work_id) <= (:finished_at, :work_id)
        and (:all_offices = 1 or office_id in (select key from json_each(:offices)))
    order by finished_at desc, work_id desc limit :limit
) found
left join jobs on jobs.job_id = found.job_id
left join runs on runs.job_id = found.job_id
left join direct_executions on found.job_id is null and direct_executions.run_id = found.work_id
order by found.finished_at desc, found.work_id desc;

-- work: COMPLETED work of a type by the id of its run or of its direct execution, in the form of `works`
select runs.run_id, jobs.job_id, jobs.office_id, runs.finished_at, jobs.params, runs.result, null, jobs.worker_id
from runs join jobs on jobs.job_id = runs.job_id
where runs.run_id = :work_id and jobs.job_type = :job_type and jobs.outcome = 'COMPLETED' and runs.result is not null
union all
select run_id, null, office_id, finished_at, params, result, coalesce(direct_id, run_id), worker_id
from direct_executions
where run_id = :work_id and job_type = :job_type and status = 'COMPLETED' and result is not null;
