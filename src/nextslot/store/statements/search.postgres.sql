-- Differs because full text has no common form: a row for each job there, with a column for its words.

-- add: stores the title of a new job
insert into job_text (job_id, title) values (:job_id, :title);

-- add_error: stores the error of a failed job
insert into job_text (job_id, error) values (:job_id, :error) on conflict (job_id) do update set error = excluded.error;

-- drop: deletes the texts of jobs
delete from job_text where job_id in (select key from json_each(:job_ids));

-- find: jobs whose title or error contains these words
select job_id from job_text where words @@ cast(:tsquery as tsquery) limit :limit;

-- fill: stores the texts of all jobs
insert into job_text (job_id, title, error)
select job_id, substr(title, 1, 1000), error_line from jobs where title is not null or error_line is not null;
