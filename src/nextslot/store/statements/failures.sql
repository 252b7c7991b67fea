-- see: adds failures to a fingerprint, and stores the error of the newest one
insert into failures (fingerprint, office_id, job_type, failure_kind, message, last_error, first_seen, last_seen, total)
values (:fingerprint, :office_id, :job_type, :failure_kind, :message, :last_error, :seen, :seen, :failed)
on conflict (fingerprint) do update set last_error = excluded.last_error, last_seen = excluded.last_seen,
    total = failures.total + excluded.total;

-- count: adds failures to the count of an hour
insert into failure_hours (fingerprint, hour, failed) values (:fingerprint, :hour, :failed)
on conflict (fingerprint, hour) do update set failed = failure_hours.failed + excluded.failed;

-- get: the stored facts about a fingerprint
select {failures.columns} from failures where fingerprint = :fingerprint;

-- change: stores whether a fingerprint is muted, and its note
update failures set is_muted = :is_muted, note = :note where fingerprint = :fingerprint;

-- buckets: the failures of each part of a range, by fingerprint
select fingerprint, (hour - :begin) / :width, sum(failed) from failure_hours
where fingerprint in (select key from json_each(:fingerprints)) and hour >= :begin and hour < :until
group by fingerprint, (hour - :begin) / :width;

-- last: the last jobs that failed with a fingerprint, with their runs and schedules
select jobs.job_id, runs.run_id, jobs.schedule_id, schedules.name
from jobs join runs on runs.job_id = jobs.job_id left join schedules on schedules.schedule_id = jobs.schedule_id
where jobs.fingerprint = :fingerprint order by jobs.created_at desc, jobs.job_id desc limit :limit;

-- forget_hours: deletes the counts of hours before a time
delete from failure_hours where hour < :before;

-- forget: deletes fingerprints last seen before a time, unless a person muted one or wrote a note
delete from failures where last_seen < :before and is_muted = 0 and note is null;
