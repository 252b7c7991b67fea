-- Lists of jobs by when they ended, by how long they ran, and by priority; each begins with how a job ended.
-- `services/lists.py` reads them, also for jobs that ended within a range of time.
-- `job_id >= ''` always holds. Only a statement that says so is led by the index; else PostgreSQL may search all of it for
-- an id (0001).
-- A column, since SQLite finds a place among equal values of an index by columns only.
alter table jobs add column duration {int} generated always as (finished_at - started_at) {computed};

create index jobs_by_finished on jobs (
    (case when finished_at is null then 'LIVE' when stage = 'CANCELLED' then 'CANCELLED' else outcome end),
    finished_at, job_id
) where finished_at is not null;
create index jobs_by_duration on jobs (
    (case when finished_at is null then 'LIVE' when stage = 'CANCELLED' then 'CANCELLED' else outcome end),
    duration, job_id
) where duration is not null;
create index jobs_by_priority on jobs (
    (case when finished_at is null then 'LIVE' when stage = 'CANCELLED' then 'CANCELLED' else outcome end),
    priority, created_at, job_id
) where job_id >= '';
