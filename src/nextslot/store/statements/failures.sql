-- see: failures with a fingerprint, the newest of which has this error
insert into failures (fingerprint, office_id, job_type, failure_kind, message, last_error, first_seen, last_seen, total)
values (:fingerprint, :office_id, :job_type, :failure_kind, :message, :last_error, :seen, :seen, :failed)
on conflict (fingerprint) do update set last_error = excluded.last_error, last_seen = excluded.last_seen,
    total = failures.total + excluded.total;

-- count: how many more there were in an hour
insert into failure_hours (fingerprint, hour, failed) values (:fingerprint, :hour, :failed)
on conflict (fingerprint, hour) do update set failed = failure_hours.failed + excluded.failed;

-- get: what is stored of a fingerprint
select {failures.columns} from failures where fingerprint = :fingerprint;

-- change: whether it is muted, and its note
update failures set is_muted = :is_muted, note = :note where fingerprint = :fingerprint;

-- buckets: how many in each part of a range, by fingerprint
select fingerprint, (hour - :begin) / :width, sum(failed) from failure_hours
where fingerprint in (select key from json_each(:fingerprints)) and hour >= :begin and hour < :until
group by fingerprint, (hour - :begin) / :width;

-- last: the last jobs that failed so, with their runs and schedules
select jobs.job_id, runs.run_id, jobs.schedule_id, schedules.name
from jobs join runs on runs.job_id = jobs.job_id left join schedules on schedules.schedule_id = jobs.schedule_id
where jobs.fingerprint = :fingerprint order by jobs.created_at desc, jobs.job_id desc limit :limit;

-- forget_hours: of long ago
delete from failure_hours where hour < :before;

-- forget: what was last seen long ago, unless somebody has said something about it
delete from failures where last_seen < :before and is_muted = 0 and note is null;
