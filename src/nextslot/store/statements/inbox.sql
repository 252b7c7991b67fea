-- newest: the id of the last request, an empty text without any
select coalesce(max(job_id), '') from inbox;

-- page: stored requests after one and up to another, in the order in which programs stored them
select job_id, job_type, params, options, sent_by from inbox where job_id > :after and job_id <= :newest
order by job_id limit :limit;

-- waits: whether a request was not taken in yet
select 1 from inbox where job_id = :job_id;

-- delete: removes a request, in the transaction that stores its job
delete from inbox where job_id = :job_id;
