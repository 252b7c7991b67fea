-- The last checkpoint of each chain: what its work has stored for the attempt after it. One row a chain, replaced by the
-- next one; only the run that has not ended may write it (statement `checkpoints.keep`).

create table checkpoints (
    chain_id text not null primary key,
    run_id text not null references runs,
    stored_at {int} not null,
    value text not null
) {table};

create index checkpoints_run on checkpoints (run_id);

-- A job that waits for a person or a program, and the answers. The wait is one of `unmet` while `is_awaiting` is 1.

-- What it waits for: `{"name", "question", "deadline_seconds", "on_deadline", "answered_by"}`.
alter table jobs add column await_signal text;
alter table jobs add column is_awaiting {int} not null default 0 check (is_awaiting in (0, 1));
-- Since when nothing else holds it back, and until when an answer counts; null: it was not asked, or has no deadline.
alter table jobs add column asked_at {int};
alter table jobs add column answer_by {int};

create index jobs_answer_by on jobs (answer_by) where stage = 'QUEUED' and is_awaiting = 1 and answer_by is not null;

-- What a session asked for before it ended: then its run ends with the kind `parked`.
alter table runs add column park text;

-- Answers, one for each wait of a chain for a name: `number` counts those. `job_id` is the job that waited; null: the
-- answer came before its job waited, and is kept.
create table signals (
    chain_id text not null,
    name text not null,
    number {int} not null check (number >= 1),
    job_id text references jobs,
    signal_id text,
    answer text not null check (answer in ('approve', 'reject', 'fail')),
    payload text,
    sent_by text not null,
    sent_at {int} not null,
    primary key (chain_id, name, number)
) {table};

create index signals_job on signals (job_id) where job_id is not null;

rule job_waits_in_queue before update of is_awaiting on jobs
    refuse 'a job waits for a signal only before it starts, and is answered once'
    when new.is_awaiting <> old.is_awaiting and (old.stage <> 'QUEUED' or new.is_awaiting = 1);

rule signal_fixed before update on signals
    refuse 'an answer does not change; only a kept one gets its job'
    when new.answer <> old.answer or new.sent_by <> old.sent_by or new.sent_at <> old.sent_at
        or (old.job_id is not null and (new.job_id is null or new.job_id <> old.job_id));
