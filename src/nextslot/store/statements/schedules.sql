-- insert: stores a new schedule
insert into schedules ({schedules.new_columns}) values ({schedules.new_values});

-- update: stores the settings of a schedule, or its deletion
update schedules set {schedules.changes} where schedule_id = :schedule_id;

-- advance: stores how far the ledger of a schedule goes, and its next occurrence
update schedules set last_triggered_at = :last_triggered_at, next_trigger_at = :next_trigger_at,
    accounted_until = :accounted_until
where schedule_id = :schedule_id;

-- get: one schedule, even if deleted
select {schedules.columns} from schedules where schedule_id = :schedule_id;

-- by_name: the schedule that has this name now
select schedule_id from schedules where office_id = :office_id and name = :name and deleted_at is null;

-- due: schedules whose next occurrence is due, the earliest first
select {schedules.columns} from schedules where enabled = 1 and next_trigger_at <= :now
order by next_trigger_at, schedule_id limit :limit;

-- next_instant: when the next occurrence of any schedule is due
select min(next_trigger_at) from schedules where enabled = 1;

-- enabled: enabled schedules, a page at a time
select {schedules.columns} from schedules where enabled = 1 and schedule_id > :after order by schedule_id limit :limit;

-- of_template: enabled schedules that use a template
select {schedules.columns} from schedules where template_id = :template_id and enabled = 1 and deleted_at is null
order by schedule_id;

-- page: schedules that are not deleted, below an id, newest first
select {schedules.columns} from schedules where schedule_id < :before and deleted_at is null
    and office_id = coalesce(:office_id, office_id) and template_id = coalesce(:template_id, template_id)
order by schedule_id desc limit :limit;

-- at_work: those of some schedules with an unfinished job, by a JSON object whose keys are the ids
select distinct schedule_id from jobs
where schedule_id in (select key from json_each(:schedule_ids)) and schedule_id is not null and finished_at is null;
