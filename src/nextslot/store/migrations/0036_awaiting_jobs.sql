-- The jobs that wait for nothing but an answer, in the order of the list: few, however many wait for something else.

create index jobs_awaiting on jobs (created_at, job_id)
    where stage = 'QUEUED' and is_awaiting = 1 and unmet = 1 and is_due = 1 and is_turn = 1;

-- The answer that the jobs of a template, and so of its schedules, wait for.
alter table job_templates add column await_signal text;
