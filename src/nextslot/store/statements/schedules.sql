-- insert: a new schedule
insert into schedules ({schedules.new_columns}) values ({schedules.new_values});

-- update: what a schedule says, or that it is deleted
update schedules set {schedules.changes} where schedule_id = :schedule_id;

-- advance: how far its occurrences are accounted for, and when the next one is
update schedules set last_triggered_at = :last_triggered_at, next_trigger_at = :next_trigger_at,
    accounted_until = :accounted_until
where schedule_id = :schedule_id;

-- get: one schedule, deleted or not
select {schedules.columns} from schedules where schedule_id = :schedule_id;

-- by_name: the schedule that has this name now
select schedule_id from schedules where office_id = :office_id and name = :name and deleted_at is null;

-- due: those whose next occurrence has come, the earliest first
select {schedules.columns} from schedules where enabled = 1 and next_trigger_at <= :now
order by next_trigger_at, schedule_id limit :limit;

-- next_instant: when the first of them is due
select min(next_trigger_at) from schedules where enabled = 1;

-- enabled: all that are enabled, a page at a time
select {schedules.columns} from schedules where enabled = 1 and schedule_id > :after order by schedule_id limit :limit;

-- of_template: those that a template is used by, and that are enabled
select {schedules.columns} from schedules where template_id = :template_id and enabled = 1 and deleted_at is null
order by schedule_id;

-- page: those that are not deleted, the newest first, from an id downwards
select {schedules.columns} from schedules where schedule_id < :before and deleted_at is null
    and office_id = coalesce(:office_id, office_id) and template_id = coalesce(:template_id, template_id)
order by schedule_id desc limit :limit;

-- at_work: of some schedules, those with a job that has not ended, by a JSON object whose keys are the ids
select distinct schedule_id from jobs
where schedule_id in (select key from json_each(:schedule_ids)) and schedule_id is not null and finished_at is null;
