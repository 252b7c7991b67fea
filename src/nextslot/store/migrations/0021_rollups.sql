-- Rollups: how many jobs ended, by minute, hour or day, office, type and outcome, with histograms of their waits and
-- durations. Every transaction that ends jobs writes them. No reference to offices: it would cost at every end.

-- The ends of the last minutes. `wait` and `duration` are numbers of buckets, both -1 for a job that never started.
create table rollups_recent (
    minute {int} not null,
    office_id text not null,
    job_type text not null,
    kind text not null check (kind in ('job', 'direct')),
    outcome text not null check (outcome in ('COMPLETED', 'FAILED', 'SKIPPED', 'CANCELLED')),
    wait {int} not null check (wait >= -1),
    duration {int} not null check (duration >= -1),
    jobs {int} not null check (jobs > 0),
    primary key (minute, office_id, job_type, kind, outcome, wait, duration),
    check ((wait = -1) = (duration = -1))
) {table};

-- Those before: `step` is the span in seconds, `waits` and `durations` are JSON, counts by the number of a bucket.
create table rollups (
    step {int} not null check (step in (60, 3600, 86400)),
    at {int} not null,
    office_id text not null,
    job_type text not null,
    kind text not null check (kind in ('job', 'direct')),
    outcome text not null check (outcome in ('COMPLETED', 'FAILED', 'SKIPPED', 'CANCELLED')),
    jobs {int} not null check (jobs > 0),
    waits text not null,
    durations text not null,
    primary key (step, at, office_id, job_type, kind, outcome)
) {table};

create index rollups_office on rollups (office_id, step, at);

-- How many jobs were WAITING or QUEUED at the beginning of a minute in which something changed. A minute has a row with
-- an empty office and type, for its total, and one for each office and type that had such a job. `step` is 60, or the
-- span of which this is the first minute that is left.
create table queue_depths (
    step {int} not null check (step in (60, 3600, 86400)),
    at {int} not null,
    office_id text not null,
    job_type text not null,
    depth {int} not null,
    primary key (step, at, office_id, job_type)
) {table};

-- From when rollups can be compared with history: jobs that ended before `history_from` may be deleted, and what ended
-- before `written_from` may not be counted. No row: from the beginning.
create table rollup_bounds (
    name text not null primary key check (name in ('history_from', 'written_from')),
    at {int} not null
) {table};

insert into rollup_bounds (name, at)
select 'written_from', max(ended.at) + 1
from (select max(finished_at) as at from jobs union all select max(finished_at) from direct_executions) as ended
having max(ended.at) is not null;
