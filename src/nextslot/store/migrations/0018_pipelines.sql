-- A template makes one job of the type `job_type`, or a group of `jobs`: JSON, a list of requests for jobs.

drop rule template_identity on job_templates;

alter table job_templates rename column job_type to only_type;
alter table job_templates add column job_type text;
update job_templates set job_type = only_type;
alter table job_templates drop column only_type;
alter table job_templates add column jobs text check ((jobs is null) <> (job_type is null));
alter table job_templates add column mode text
    check ((mode is null) = (jobs is null) and (mode is null or mode in ('sequential', 'parallel')));
alter table job_templates add column on_failure text
    check ((on_failure is null) = (jobs is null) and (on_failure is null or on_failure in ('stop', 'continue', 'skip')));

rule template_identity before update on job_templates
    refuse 'what a template is never changes, and an archived one not at all'
    when new.template_id <> old.template_id or new.created_at <> old.created_at or old.archived_at is not null;

-- What made a group; its jobs have the same.
alter table job_groups add column template_id text;
alter table job_groups add column schedule_id text;

-- The group that an occurrence made; `job_id` is its first job then.
alter table occurrences add column group_id text references job_groups check (group_id is null or job_id is not null);

rule occurrence_of_group before insert on occurrences
    refuse 'the job of an occurrence is of its group'
    when exists (select 1 from jobs where job_id = new.job_id and group_id is distinct from new.group_id);

-- Whether a group that is to be purged was made by one.
create index occurrences_group on occurrences (group_id) where group_id is not null;
