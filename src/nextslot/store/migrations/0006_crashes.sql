-- Who was there when a scheduler died: a chain that takes its scheduler down is not run for ever.

-- Whether the handler runs in the scheduler's own process, and can end it.
alter table runs add column is_inside {int} not null default 0 check (is_inside in (0, 1));
-- How many other works were inside that process when it died; stored by recovery before it ends any of them.
alter table runs add column beside {int} check (beside >= 0);

rule run_company_kept before update of is_inside, beside on runs
    refuse 'where a run took place, and beside whom, does not change'
    when new.is_inside <> old.is_inside or (new.beside is distinct from old.beside
        and (old.beside is not null or old.finished_at is not null or old.is_inside = 0));
