-- Placements: runs that an engine such as Slurm has. They outlive their node, and another node goes on from here. A row
-- is written with the run's start and deleted with its end.
create table placements (
    run_id text not null primary key references runs,
    job_id text not null references jobs,
    engine text not null,
    state text not null check (state in ('submitting', 'queued', 'running', 'unknown')),
    -- The engine's own id of it; null: no submission was confirmed.
    handle text,
    -- What was decided when it started, without secrets.
    spec text not null,
    -- Of the token that only the run's directory knows: records without it are not of this run.
    token_hash text not null,
    placed_at {int} not null,
    claimed_at {int},
    lease_until {int},
    check ((claimed_at is null) = (lease_until is null))
) {table};
create index placements_job on placements (job_id);

-- What readers see of it, also after its end: `{"engine", "state", "handle"}`; null: it ran on a node.
alter table runs add column placement text;

drop rule run_identity on runs;
rule run_identity before update of run_id, job_id, template_id, params_snapshot, started_at, timeout_at on runs
    refuse 'what a run is never changes (INV-002)'
    when new.run_id <> old.run_id or new.job_id <> old.job_id or new.template_id is distinct from old.template_id
        or new.params_snapshot <> old.params_snapshot or new.started_at <> old.started_at
        -- Its deadline moves with the wall clock, while it runs. That of a placed run counts from its wrapper's claim.
        or (new.timeout_at is distinct from old.timeout_at
            and (old.status is not null
                or (not exists (select 1 from placements where placements.run_id = old.run_id)
                    and (old.timeout_at is null or new.timeout_at is null
                        or not exists (select 1 from maintenance)))));

drop rule job_ends_once on jobs;
rule job_ends_once before update of started_at, worker_id, finished_at, outcome, cancelled_at, cancel_requested_at, cancel_mode, cancel_reason on jobs
    refuse 'what is written when a job starts or ends is written once'
    when (old.stage <> 'QUEUED'
            and (new.started_at is distinct from old.started_at
                -- A placed run gets another worker when another node adopts it.
                or (new.worker_id is distinct from old.worker_id
                    and (old.finished_at is not null
                        or not exists (select 1 from placements where placements.job_id = old.job_id)))))
        or (old.finished_at is not null
            and (new.finished_at is distinct from old.finished_at or new.outcome is distinct from old.outcome
                or new.cancelled_at is distinct from old.cancelled_at
                or new.cancel_requested_at is distinct from old.cancel_requested_at
                or new.cancel_mode is distinct from old.cancel_mode
                or new.cancel_reason is distinct from old.cancel_reason));
