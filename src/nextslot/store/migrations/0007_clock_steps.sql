-- Due times that count from a moment move when the wall clock steps (engine/cluster/clock_steps.py).

-- By how many microseconds the node's time is ahead of its monotonic clock: by this its due times are counted.
alter table nodes add column clock_offset {int};

drop rule run_identity on runs;
rule run_identity before update of run_id, job_id, template_id, params_snapshot, started_at, timeout_at on runs
    refuse 'what a run is never changes (INV-002)'
    when new.run_id <> old.run_id or new.job_id <> old.job_id or new.template_id is distinct from old.template_id
        or new.params_snapshot <> old.params_snapshot or new.started_at <> old.started_at
        -- Its deadline moves with the wall clock, while it runs.
        or (new.timeout_at is distinct from old.timeout_at
            and (old.status is not null or old.timeout_at is null or new.timeout_at is null
                or not exists (select 1 from maintenance)));

drop rule reservation_identity on reservations;
rule reservation_identity before update of reservation_id, office_id, reserved_at, reserved_by on reservations
    refuse 'what a reservation is never changes'
    when new.reservation_id <> old.reservation_id or new.office_id <> old.office_id
        or new.reserved_by <> old.reserved_by
        -- Its age counts, so its beginning moves with the wall clock.
        or (new.reserved_at <> old.reserved_at
            and (old.status <> 'ACTIVE' or not exists (select 1 from maintenance)));
