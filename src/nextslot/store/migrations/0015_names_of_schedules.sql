-- The name of a schedule is given once in its office, among those that are not deleted. Of several that have one name,
-- the oldest keeps it, and the others get a number.

update schedules set name = substr(name, 1, 900) || ' (' || numbered.place || ')'
from (
    select schedule_id as renamed, row_number() over (partition by office_id, name order by schedule_id) as place
    from schedules where deleted_at is null
) as numbered
where schedules.schedule_id = numbered.renamed and numbered.place > 1;

-- That name may have been taken as well; an id is not.
update schedules set name = substr(name, 1, 900) || ' (' || schedule_id || ')'
from (
    select schedule_id as renamed, row_number() over (partition by office_id, name order by schedule_id) as place
    from schedules where deleted_at is null
) as numbered
where schedules.schedule_id = numbered.renamed and numbered.place > 1;

create unique index schedules_name on schedules (office_id, name) where deleted_at is null;

drop rule schedule_inserted_once on schedules;
rule schedule_inserted_once before insert on schedules
    refuse 'a schedule cannot be replaced, and its name is given once in its office'
    when exists (select 1 from schedules where schedule_id = new.schedule_id)
        or (new.deleted_at is null
            and exists (select 1 from schedules
                where office_id = new.office_id and name = new.name and deleted_at is null));

rule schedule_renamed before update of name, office_id on schedules
    refuse 'a schedule cannot be replaced, and its name is given once in its office'
    when (new.name <> old.name or new.office_id <> old.office_id) and new.deleted_at is null
        and exists (select 1 from schedules
            where office_id = new.office_id and name = new.name and deleted_at is null);
