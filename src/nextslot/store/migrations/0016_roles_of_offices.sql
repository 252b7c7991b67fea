-- An office that sets no timeout has none stored: the role of a job decides then, else 30 minutes.
update offices set timeout_seconds = null where timeout_seconds = 1800 and office_id <> 'default';

-- How an office runs the jobs of its roles, over the configuration: JSON, settings by role.
alter table offices add column roles text not null default '{}';
