-- insert: stores a new template
insert into job_templates ({templates.new_columns}) values ({templates.new_values});

-- update: stores the settings of a template, or that it is archived
update job_templates set {templates.changes} where template_id = :template_id;

-- get: one template, even if archived
select {templates.columns} from job_templates where template_id = :template_id;

-- get_many: several templates, by a JSON object whose keys are the ids
select {templates.columns} from job_templates where template_id in (select key from json_each(:template_ids));

-- by_name: the template that has this name now
select template_id from job_templates where office_id = :office_id and name = :name and archived_at is null;

-- page: templates that are not archived, below an id, newest first
select {templates.columns} from job_templates where template_id < :before and archived_at is null
    and (:office_id = '' or office_id = :office_id)
order by template_id desc limit :limit;
