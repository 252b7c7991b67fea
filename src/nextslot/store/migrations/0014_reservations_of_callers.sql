-- An ACTIVE reservation belongs to a direct execution that waits: one without would hold its office's queue.

update reservations set status = 'RELEASED' where status = 'ACTIVE' and not exists (
    select 1 from direct_executions
    where direct_executions.run_id = reservations.run_id and direct_executions.status = 'WAITING');

rule reservation_has_caller before insert on reservations
    refuse 'a reservation is made for a direct execution that waits (spec 11.3)'
    when new.status = 'ACTIVE' and not exists (select 1 from maintenance)
        and not exists (select 1 from direct_executions where run_id = new.run_id and status = 'WAITING');

drop rule reservation_identity on reservations;
rule reservation_identity before update of reservation_id, run_id, office_id, reserved_at, reserved_by on reservations
    refuse 'what a reservation is never changes'
    when new.reservation_id <> old.reservation_id or new.run_id is distinct from old.run_id
        or new.office_id <> old.office_id or new.reserved_by <> old.reserved_by
        -- Its age counts, so its beginning moves with the wall clock.
        or (new.reserved_at <> old.reserved_at
            and (old.status <> 'ACTIVE' or not exists (select 1 from maintenance)));
