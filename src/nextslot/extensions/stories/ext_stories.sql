-- results: the newest results of COMPLETED work of the type `story`, of jobs and of direct callers
select result from (
    select runs.result, runs.finished_at from jobs join runs on runs.job_id = jobs.job_id
    where jobs.job_type = 'story' and jobs.outcome = 'COMPLETED'
    union all
    select result, finished_at from direct_executions where job_type = 'story' and status = 'COMPLETED'
) found where result is not null order by finished_at desc limit :limit;
