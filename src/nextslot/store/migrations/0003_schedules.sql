-- Templates, schedules, and the ledger of what became of every occurrence.

create table job_templates (
    template_id text not null primary key,
    name text not null,
    job_type text not null,
    params text not null,
    priority {int} not null check (priority between -999999 and 1000000),
    timeout_seconds {real},
    retry_policy text,
    resources text,
    webhook text,
    description text,
    created_at {int} not null,
    archived_at {int}
) {table};

-- A name is given once among those that live; that of an archived one is free again.
create unique index templates_name on job_templates (name) where archived_at is null;

-- Every occurrence up to `accounted_until` is in the ledger; `next_trigger_at` is the first after it, while enabled.
create table schedules (
    schedule_id text not null primary key,
    template_id text not null references job_templates,
    name text not null,
    cron_expression text not null,
    timezone text not null,
    enabled {int} not null check (enabled in (0, 1)),
    office_id text not null references offices,
    param_overrides text,
    catch_up text not null check (catch_up in ('latest', 'all', 'none')),
    catch_up_window_seconds {real} not null check (catch_up_window_seconds >= 0),
    overlap text not null check (overlap in ('allow', 'skip')),
    priority {int} check (priority between -999999 and 1000000),
    last_triggered_at {int},
    next_trigger_at {int},
    accounted_until {int} not null,
    created_at {int} not null,
    deleted_at {int},
    check (enabled = 1 or next_trigger_at is null),
    check (next_trigger_at is null or next_trigger_at > accounted_until),
    check (deleted_at is null or enabled = 0)
) {table};

create index schedules_due on schedules (next_trigger_at, schedule_id) where enabled = 1;
create index schedules_enabled on schedules (schedule_id) where enabled = 1;
create index schedules_template on schedules (template_id, schedule_id) where deleted_at is null;
-- Whether a schedule's last job is still at work: what `overlap` asks.
create index jobs_schedule_live on jobs (schedule_id) where schedule_id is not null and finished_at is null;

-- Every planned instant of a schedule is accounted for, once; `until` and `count` make one row of a span.
create table occurrences (
    schedule_id text not null references schedules,
    instant {int} not null,
    until {int},
    count {int} not null check (count > 0),
    outcome text not null check (outcome in ('fired', 'skipped')),
    reason text check (reason in ('missed', 'coalesced', 'overlap', 'disabled', 'outside_window', 'refused')),
    detail text,
    job_id text references jobs,
    primary key (schedule_id, instant),
    check ((outcome = 'fired') = (job_id is not null)),
    check ((outcome = 'skipped') = (reason is not null)),
    check ((count = 1) = (until is null)),
    check (until is null or until > instant)
) {table};

-- Whether a job that is to be purged was made by one.
create index occurrences_job on occurrences (job_id) where job_id is not null;

rule template_inserted_once before insert on job_templates
    refuse 'a template cannot be replaced, and its name is given once'
    when exists (select 1 from job_templates where template_id = new.template_id)
        or (new.archived_at is null
            and exists (select 1 from job_templates where name = new.name and archived_at is null));

rule template_renamed before update of name on job_templates
    refuse 'a template cannot be replaced, and its name is given once'
    when new.name <> old.name and new.archived_at is null
        and exists (select 1 from job_templates where name = new.name and archived_at is null);

rule template_identity before update on job_templates
    refuse 'what a template is never changes, and an archived one not at all'
    when new.template_id <> old.template_id or new.created_at <> old.created_at or old.archived_at is not null;

rule template_kept before delete on job_templates
    refuse 'a template is archived, never deleted outside maintenance'
    when not exists (select 1 from maintenance);

rule schedule_inserted_once before insert on schedules
    refuse 'a schedule cannot be replaced'
    when exists (select 1 from schedules where schedule_id = new.schedule_id);

rule schedule_identity before update on schedules
    refuse 'what a schedule is never changes, and a deleted one not at all'
    when new.schedule_id <> old.schedule_id or new.created_at <> old.created_at or old.deleted_at is not null;

rule schedule_kept before delete on schedules
    refuse 'a schedule is never deleted outside maintenance'
    when not exists (select 1 from maintenance);

-- Also a span covers no instant that another row covers. The rows before it cover nothing twice, so one look is enough.
rule occurrence_inserted_once before insert on occurrences
    refuse 'an occurrence is accounted for once'
    when coalesce((
        select coalesce(until, instant) from occurrences
        where schedule_id = new.schedule_id and instant <= coalesce(new.until, new.instant)
        order by instant desc limit 1), new.instant - 1) >= new.instant;

rule occurrence_fixed before update on occurrences
    refuse 'an occurrence is accounted for once'
    when 1 = 1;

rule occurrence_kept before delete on occurrences
    refuse 'an occurrence is accounted for once'
    when not exists (select 1 from maintenance);
