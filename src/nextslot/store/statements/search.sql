-- add: stores the title of a new job
insert into job_text (job_id, id_word, title, error) values (:job_id, replace(:job_id, '-', ''), :title, null);

-- add_error: stores title and error of a failed job; its title alone is found as before
insert into job_text (job_id, id_word, title, error) values (:job_id, replace(:job_id, '-', ''),
    (select substr(title, 1, 1000) from jobs where jobs.job_id = :job_id), :error);

-- drop: deletes the texts of jobs
delete from job_text where rowid in (
    select found.rowid from json_each(:job_ids) as wanted join job_text as found
    on found.job_text match 'id_word : "' || replace(wanted.key, '-', '') || '"');

-- find: jobs whose title or error contains these words; :tsquery has the same words for PostgreSQL
select job_id from job_text where job_text match :match and :tsquery <> '' order by rowid desc limit :limit;

-- empty: deletes all texts before `fill` stores them again
delete from job_text;

-- fill: stores the texts of all jobs
insert into job_text (job_id, id_word, title, error)
select job_id, replace(job_id, '-', ''), substr(title, 1, 1000), error_line from jobs
where title is not null or error_line is not null;
