-- A template belongs to an office, and its name is given once there.

alter table job_templates add column office_id text not null default 'default';

drop index if exists templates_name;
create unique index templates_name on job_templates (office_id, name) where archived_at is null;

drop rule template_inserted_once on job_templates;
rule template_inserted_once before insert on job_templates
    refuse 'a template cannot be replaced, and its name is given once'
    when exists (select 1 from job_templates where template_id = new.template_id)
        or (new.archived_at is null
            and exists (select 1 from job_templates
                where office_id = new.office_id and name = new.name and archived_at is null));

drop rule template_renamed on job_templates;
rule template_renamed before update of name on job_templates
    refuse 'a template cannot be replaced, and its name is given once'
    when new.name <> old.name and new.archived_at is null
        and exists (select 1 from job_templates
            where office_id = new.office_id and name = new.name and archived_at is null);

rule template_stays before update of office_id on job_templates
    refuse 'a template stays in its office'
    when new.office_id <> old.office_id;
