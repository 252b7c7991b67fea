-- Aging (spec 3.13): a job that has been ready for n periods of its office goes before others by n steps.

-- One step a period, in seconds; null: the priority of a job stays what it is.
alter table offices add column priority_aging_seconds {real};
-- The largest position that a job of the office was given, since the office first had a period: jobs that came with
-- different priorities can be compared then, when they have reached the same level. Null: never had one.
alter table offices add column last_position {int};
-- The place after which the jobs of a queue get their first step, while a new period is being applied; null: none is.
alter table offices add column aging_from text;
create index offices_aging on offices (office_id) where aging_from is not null;

alter table jobs add column aged_steps {int} not null default 0 check (aged_steps >= 0);
-- When it gets its next step; null: its office has no period, or it is not ready, or is as far in front as it can be.
alter table jobs add column ages_at {int};
-- What the order goes by: its priority and its steps, but before urgent jobs comes nothing.
alter table jobs add column order_priority {int} generated always as (
    case when priority + aged_steps <= 999999 or priority = 1000000 then priority + aged_steps else 999999 end
) {computed};

drop index jobs_queue;
create index jobs_queue on jobs (office_id, order_priority desc, position, created_at, job_id) where stage = 'QUEUED';
drop index jobs_ready;
create index jobs_ready on jobs (lane_id, order_priority desc, position, created_at, job_id)
    where stage = 'QUEUED' and unmet = 0 and is_due = 1 and is_turn = 1;
create index jobs_aging on jobs (ages_at) where stage = 'QUEUED' and ages_at is not null;

rule job_ages_in_queue before update of aged_steps on jobs
    refuse 'a job ages only while it is queued, and an urgent one not at all'
    when new.aged_steps <> old.aged_steps and (old.stage <> 'QUEUED' or (new.aged_steps > 0 and new.priority = 1000000));

-- Since when a run has been silent, if the stall alarm was given for it (spec 5.25); null: it is not silent.
alter table runs add column silent_since {int};
alter table direct_executions add column silent_since {int};
