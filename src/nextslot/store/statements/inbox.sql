-- page: requests after one, in the order in which they were stored
select job_id, job_type, params, options, sent_by from inbox where job_id > :after order by job_id limit :limit;

-- delete: a request is taken in, by the transaction that stores its job
delete from inbox where job_id = :job_id;
