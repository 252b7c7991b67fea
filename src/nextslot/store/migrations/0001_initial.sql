-- The whole schema: what is stored, and what the database itself refuses.
-- Times are microseconds since 1970 in UTC; flags are 0 or 1; JSON is text.

create table offices (
    office_id text not null primary key,
    name text not null,
    status text not null check (status in ('active', 'archived')),
    is_paused {int} not null check (is_paused in (0, 1)),
    max_concurrent_jobs {int} not null check (max_concurrent_jobs >= 0),
    role_limits text not null,
    timeout_seconds {real},
    retry_policy text not null,
    cancel_mode text not null check (cancel_mode in ('finish', 'interrupt')),
    on_dependency_failure text not null check (on_dependency_failure in ('wait', 'cancel')),
    webhook text,
    created_at {int} not null
) {table};

-- A lane is the set of limits that a job falls under. `ready` counts its jobs that are free to go; `is_open` says that
-- its office could start one now as far as the office itself is concerned; `turn` is when its office was last served.
-- The rest is what an office's statistics are summed from: jobs that run, chains that were begun, and how those ended.
-- A chain may begin in one lane and end in another of its office, so only the sums over an office mean something.
create table lanes (
    lane_id {int} not null primary key,
    office_id text not null references offices,
    job_type text not null,
    resources text not null,
    local text not null,
    shared text not null,
    class_key text not null,
    ready {int} not null check (ready >= 0),
    is_open {int} not null check (is_open in (0, 1)),
    turn {int} not null,
    running {int} not null,
    chains {int} not null,
    completed {int} not null,
    skipped {int} not null,
    failed {int} not null,
    cancelled {int} not null,
    completion_us {int} not null
) {table};

-- Also how an office's lanes are found: they are few. An index of those with ready jobs would change with every job.
create unique index lanes_class on lanes (office_id, class_key, local);
create index lanes_open on lanes (class_key, turn, lane_id) where is_open = 1;

create table limits (
    limit_key text not null primary key,
    capacity {int} not null check (capacity >= 0),
    used {int} not null check (used >= 0)
) {table};

create table pauses (
    scope text not null check (scope in ('scheduler', 'type', 'resource')),
    name text not null,
    paused_at {int} not null,
    primary key (scope, name)
) {table};

create table job_groups (
    group_id text not null primary key,
    office_id text not null references offices,
    name text,
    mode text not null check (mode in ('sequential', 'parallel')),
    on_failure text not null check (on_failure in ('stop', 'continue', 'skip')),
    status text not null check (status in ('QUEUED', 'RUNNING', 'COMPLETED', 'PARTIAL', 'CANCELLED')),
    members {int} not null check (members > 0),
    ended {int} not null check (ended between 0 and members),
    succeeded {int} not null check (succeeded between 0 and ended),
    cancelled {int} not null check (cancelled between 0 and ended - succeeded),
    created_at {int} not null,
    started_at {int},
    finished_at {int},
    -- Who is told when it has ended, and by which message: only of batches of the old endpoints.
    webhook text,
    delivery_id text,
    check ((finished_at is not null) = (status in ('COMPLETED', 'PARTIAL', 'CANCELLED'))),
    check (finished_at is null or ended = members)
) {table};

create index groups_created on job_groups (created_at, group_id);
create index groups_office on job_groups (office_id, created_at, group_id);

create table jobs (
    job_id text not null primary key,
    office_id text not null references offices,
    lane_id {int} not null references lanes,
    job_type text not null,
    template_id text,
    schedule_id text,
    group_id text references job_groups,
    sequence {int},
    params text not null,
    stage text not null check (stage in ('QUEUED', 'RUNNING', 'CANCELLED')),
    outcome text check (outcome in ('COMPLETED', 'FAILED', 'SKIPPED')),
    decision text check (decision in ('undecided', 'retry', 'permanent', 'cancelled')),
    priority {int} not null check (priority between -999999 and 1000000),
    position {int} not null,
    retry_of text references jobs,
    -- The first of its chain. No reference, as that would need an index to be looked up by; `job_follows` sees to it.
    chain_id text not null,
    scheduled_for {int},
    expires_at {int},
    unmet {int} not null check (unmet >= 0),
    is_due {int} not null check (is_due in (0, 1)),
    is_turn {int} not null check (is_turn in (0, 1)),
    passed_over_since {int},
    depends_on text,
    on_dependency_failure text not null check (on_dependency_failure in ('wait', 'cancel')),
    role text,
    task_id text,
    title text,
    resources text not null,
    timeout_seconds {real},
    stall_timeout_seconds {real},
    retry_policy text not null,
    webhook text,
    webhook_status text not null check (webhook_status in ('none', 'pending', 'delivered', 'failed')),
    unique_key text,
    created_by text,
    created_at {int} not null,
    queued_at {int} not null,
    started_at {int},
    finished_at {int},
    cancel_requested_at {int},
    cancel_mode text check (cancel_mode in ('finish', 'interrupt')),
    cancelled_at {int},
    cancel_reason text,
    worker_id text,
    check ((retry_of is null) = (chain_id = job_id)),
    check ((group_id is null) = (sequence is null)),
    check (retry_of is null or retry_of <> job_id),
    check (stage <> 'QUEUED' or (started_at is null and finished_at is null)),
    check (stage <> 'RUNNING' or started_at is not null),
    check (stage <> 'CANCELLED' or (finished_at is not null and cancelled_at is not null)),
    check (stage = 'CANCELLED' or cancelled_at is null),
    check (worker_id is null or started_at is not null),
    -- What ended after a start has the outcome of its run; nothing else has one.
    check ((outcome is not null) = (started_at is not null and finished_at is not null)),
    check (outcome is null or outcome = 'FAILED' or stage <> 'CANCELLED'),
    -- A failure always says what follows, if only that it is undecided: else recovery would not find it.
    check ((decision is not null) = (outcome is not null and outcome = 'FAILED'))
) {table};

-- The queue of an office in its order (INV-004), waiting jobs too.
create index jobs_queue on jobs (office_id, priority desc, position, created_at, job_id) where stage = 'QUEUED';
-- What may start, lane by lane, in the same order.
create index jobs_ready on jobs (lane_id, priority desc, position, created_at, job_id)
    where stage = 'QUEUED' and unmet = 0 and is_due = 1 and is_turn = 1;
-- INV-003: a worker runs one job at a time.
create unique index jobs_worker on jobs (worker_id) where stage = 'RUNNING' and finished_at is null;
-- A chain is a line.
create unique index jobs_retry on jobs (retry_of) where retry_of is not null;
create index jobs_chain on jobs (chain_id) where retry_of is not null;
create index jobs_group on jobs (group_id, sequence) where group_id is not null;
-- The members of a group that have not started: looked for once for each member that fails or is cancelled.
create index jobs_unstarted on jobs (group_id, sequence)
    where group_id is not null and stage = 'QUEUED' and retry_of is null;
create unique index jobs_unique_key on jobs (office_id, unique_key) where unique_key is not null and finished_at is null;
create index jobs_due on jobs (scheduled_for) where stage = 'QUEUED' and is_due = 0;
create index jobs_expiry on jobs (expires_at) where stage = 'QUEUED' and expires_at is not null;
create index jobs_starving on jobs (passed_over_since) where stage = 'QUEUED' and passed_over_since is not null;
-- Stories are compared with the earlier ones that were completed.
create index jobs_stories on jobs (job_id) where job_type = 'story' and outcome = 'COMPLETED';
-- Research cards are compared with earlier ones.
create index jobs_cards on jobs (job_id) where job_type = 'research' and outcome = 'COMPLETED';
create index jobs_undecided on jobs (job_id) where decision = 'undecided';
-- The chains of an office that ended badly, as its API lists them.
create index jobs_office_failed on jobs (office_id, chain_id) where decision in ('permanent', 'cancelled');
create index jobs_office_cancelled on jobs (office_id, chain_id) where stage = 'CANCELLED';
-- Lists of jobs, the newest first: what a job is never changes, so these cost when it is created and never again.
-- `job_id >= ''` always holds. It is the word that a statement says to be led by such an index: else the planner would
-- also look for what an office runs in the whole history of the office, and not among what runs.
create index jobs_by_created on jobs (created_at, job_id) where job_id >= '';
create index jobs_by_office on jobs (office_id, created_at, job_id) where job_id >= '';
create index jobs_by_type on jobs (job_type, created_at, job_id) where job_id >= '';
create index jobs_by_role on jobs (role, created_at, job_id) where role is not null;
create index jobs_by_task on jobs (task_id, created_at, job_id) where task_id is not null;
create index jobs_by_template on jobs (template_id, created_at, job_id) where template_id is not null;
create index jobs_by_schedule on jobs (schedule_id, created_at, job_id) where schedule_id is not null;
create index jobs_by_group on jobs (group_id, created_at, job_id) where group_id is not null;
-- What the old endpoints list: chains of two types, by their first jobs.
create index jobs_by_legacy on jobs (created_at, job_id)
    where job_type in ('story', 'research') and office_id = 'default' and retry_of is null;
-- Lists of jobs by state; what runs is few. Together they cost a hand-over some 20 µs (docs/performance.md).
create index jobs_by_queued on jobs (created_at, job_id)
    where stage = 'QUEUED' and unmet = 0 and is_due = 1 and is_turn = 1 and job_id >= '';
create index jobs_by_waiting on jobs (created_at, job_id)
    where stage = 'QUEUED' and (unmet > 0 or is_due = 0 or is_turn = 0);
create index jobs_by_failed on jobs (created_at, job_id) where outcome = 'FAILED' and stage = 'RUNNING';
create index jobs_by_completed on jobs (created_at, job_id) where outcome = 'COMPLETED';
create index jobs_by_skipped on jobs (created_at, job_id) where outcome = 'SKIPPED';
create index jobs_by_cancelled on jobs (created_at, job_id) where stage = 'CANCELLED';

create table runs (
    run_id text not null primary key,
    job_id text not null unique references jobs,
    template_id text,
    params_snapshot text not null,
    status text check (status in ('COMPLETED', 'FAILED', 'SKIPPED')),
    started_at {int} not null,
    timeout_at {int},
    finished_at {int},
    exit_code {int},
    error text,
    failure_kind text,
    reason text,
    log_path text,
    session_id text,
    result text,
    check ((status is null) = (finished_at is null)),
    -- How it ended is not written before it ended, so that it is written once.
    check (status is not null
        or (exit_code is null and error is null and failure_kind is null and reason is null and result is null)),
    check (failure_kind is null or status = 'FAILED')
) {table};

create index runs_timeout on runs (timeout_at) where status is null and timeout_at is not null;
-- Lists of runs, the newest first.
create index runs_started on runs (started_at, run_id);
create index runs_failed on runs (started_at, run_id) where status = 'FAILED';
create index runs_skipped on runs (started_at, run_id) where status = 'SKIPPED';

create table artifacts (
    run_id text not null references runs,
    name text not null,
    path text not null,
    size {int} not null,
    primary key (run_id, name)
) {table};

create table dependencies (
    job_id text not null references jobs,
    depends_on text not null references jobs,
    chain_id text not null references jobs,
    is_met {int} not null check (is_met in (0, 1)),
    primary key (job_id, depends_on)
) {table};

-- Who waits for a chain; and, of chains and jobs that are to be purged, who ever did.
create index dependencies_chain on dependencies (chain_id, is_met);
create index dependencies_on on dependencies (depends_on);

create table idempotency_keys (
    office_id text not null,
    route text not null,
    idempotency_key text not null,
    digest text not null,
    answer text not null,
    created_at {int} not null,
    primary key (office_id, route, idempotency_key)
) {table};

create index idempotency_age on idempotency_keys (created_at);

-- A caller who waits on the line for a result: not a job, and recorded like a run. `arrival` is first come, first served.
create table direct_executions (
    direct_id text not null primary key,
    arrival {int} not null unique,
    -- Where the caller is on the line, and so where the work is done.
    node_id text not null,
    office_id text not null references offices,
    lane_id {int} not null references lanes,
    job_type text not null,
    params text not null,
    status text not null check (status in ('WAITING', 'RUNNING', 'COMPLETED', 'FAILED', 'SKIPPED', 'CANCELLED')),
    is_detached {int} not null check (is_detached in (0, 1)),
    timeout_seconds {real} not null,
    stall_timeout_seconds {real},
    webhook text,
    created_by text,
    created_at {int} not null,
    wait_until {int} not null,
    started_at {int},
    timeout_at {int},
    finished_at {int},
    cancel_requested_at {int},
    worker_id text,
    exit_code {int},
    error text,
    failure_kind text,
    reason text,
    log_path text,
    session_id text,
    result text,
    artifacts text,
    check ((finished_at is null) = (status in ('WAITING', 'RUNNING'))),
    check (status <> 'WAITING' or started_at is null),
    check (status not in ('RUNNING', 'COMPLETED', 'SKIPPED') or started_at is not null)
) {table};

create index direct_waiting on direct_executions (office_id, arrival) where status = 'WAITING';
create index direct_wait on direct_executions (wait_until) where status = 'WAITING';
create index direct_stories on direct_executions (direct_id) where job_type = 'story' and status = 'COMPLETED';
create index direct_cards on direct_executions (direct_id) where job_type = 'research' and status = 'COMPLETED';
create index direct_running on direct_executions (timeout_at) where status = 'RUNNING';
create index direct_office on direct_executions (office_id, arrival);

create table reservations (
    reservation_id text not null primary key,
    direct_id text references direct_executions,
    office_id text not null references offices,
    reserved_at {int} not null,
    reserved_by text not null,
    expires_at {int} not null,
    status text not null check (status in ('ACTIVE', 'RELEASED', 'EXPIRED'))
) {table};

-- Spec 11.3: at most one ACTIVE per office.
create unique index reservations_active on reservations (office_id) where status = 'ACTIVE';
create index reservations_direct on reservations (direct_id) where direct_id is not null;
create index reservations_expiry on reservations (expires_at) where status = 'ACTIVE';
create index reservations_reserved on reservations (reserved_at, reservation_id) where reserved_by >= '';

-- A resource whose work fails again and again because it does not answer is held, and probed with growing pauses.
create table outages (
    resource text not null primary key,
    failures {int} not null check (failures > 0),
    held_since {int},
    probe_at {int},
    pause_seconds {real} not null,
    is_probed {int} not null check (is_probed in (0, 1)),
    check ((held_since is null) = (probe_at is null))
) {table};

create table events (
    seq {serial} check (seq > 0),
    type text not null,
    office_id text,
    job_id text,
    run_id text,
    details text not null,
    timestamp {int} not null
) {log};

create index events_job on events (job_id, seq) where job_id is not null;

-- A transaction that must go round the rules (import, retention) puts a row here and takes it out again before it
-- commits: the deferred reference to a table that can hold nothing makes any commit with such a row fail.
create table never (
    never {int} not null primary key check (never is null)
) {table};

create table maintenance (
    reason text not null primary key,
    never {int} not null references never deferrable initially deferred
) {table};

rule job_born_queued before insert on jobs
    refuse 'a job is born QUEUED (spec 2.9)'
    when (new.stage <> 'QUEUED' or new.outcome is not null) and not exists (select 1 from maintenance);

-- OR REPLACE deletes what is in its way without asking the delete rules (a plain connection has recursive triggers off),
-- so what would replace a row is refused before it gets there: here, and in every rule below that looks for another row.
rule job_inserted_once before insert on jobs
    refuse 'this job exists: it cannot be replaced'
    when exists (select 1 from jobs where job_id = new.job_id)
        or (new.retry_of is not null and exists (select 1 from jobs where retry_of = new.retry_of))
        or (new.unique_key is not null and exists (
            select 1 from jobs
            where office_id = new.office_id and unique_key = new.unique_key and finished_at is null));

rule job_follows before insert on jobs
    refuse 'a retry follows a job of its own chain that failed or was cancelled (DEC-007)'
    when new.retry_of is not null
        and not exists (
            select 1 from jobs
            where job_id = new.retry_of and chain_id = new.chain_id and (stage = 'CANCELLED' or outcome = 'FAILED'))
        and not exists (select 1 from maintenance);

rule job_kept before delete on jobs
    refuse 'a job is never deleted outside maintenance'
    when not exists (select 1 from maintenance);

rule job_identity before update of job_id, office_id, job_type, template_id, schedule_id, group_id, sequence, retry_of, chain_id, unique_key, created_at, queued_at on jobs
    refuse 'what a job is never changes'
    when new.job_id <> old.job_id or new.office_id <> old.office_id or new.job_type <> old.job_type
        or new.template_id is distinct from old.template_id or new.schedule_id is distinct from old.schedule_id
        or new.group_id is distinct from old.group_id or new.sequence is distinct from old.sequence
        or new.retry_of is distinct from old.retry_of or new.chain_id <> old.chain_id
        or new.unique_key is distinct from old.unique_key
        or new.created_at <> old.created_at or new.queued_at <> old.queued_at;

rule job_moves before update of stage on jobs
    refuse 'illegal move: QUEUED to RUNNING or CANCELLED, RUNNING to CANCELLED, and no way back (spec 2.9)'
    when new.stage <> old.stage
        and not (old.stage = 'QUEUED' and new.stage in ('RUNNING', 'CANCELLED'))
        and not (old.stage = 'RUNNING' and new.stage = 'CANCELLED' and old.finished_at is null);

rule job_frozen before update of params, priority, position, lane_id, resources, timeout_seconds, stall_timeout_seconds, retry_policy, webhook on jobs
    refuse 'what a job was asked to do is frozen once it is dispatched or cancelled (INV-001, INV-005)'
    when old.stage <> 'QUEUED'
        and (new.params <> old.params or new.priority <> old.priority or new.position <> old.position
            or new.lane_id <> old.lane_id or new.resources <> old.resources
            or new.timeout_seconds is distinct from old.timeout_seconds
            or new.stall_timeout_seconds is distinct from old.stall_timeout_seconds
            or new.retry_policy <> old.retry_policy or new.webhook is distinct from old.webhook);

-- Spec 2.10: the run is inserted first, so a job never runs without one.
rule job_runs_with_run before update of stage on jobs
    refuse 'no RUNNING job without its run (spec 2.10)'
    when old.stage = 'QUEUED' and new.stage = 'RUNNING'
        and not exists (select 1 from runs where job_id = new.job_id and status is null);

rule job_takes_free_worker before update of stage, worker_id on jobs
    refuse 'a worker runs one job at a time (INV-003)'
    when new.stage = 'RUNNING' and new.finished_at is null and new.worker_id is not null
        and exists (
            select 1 from jobs
            where worker_id = new.worker_id and stage = 'RUNNING' and finished_at is null and job_id <> new.job_id);

rule job_ends_with_run before update of finished_at, outcome, stage on jobs
    refuse 'a dispatched job ends with its run, as its run (spec 2.10)'
    when new.finished_at is not null and old.finished_at is null
        and ((new.started_at is not null
                and not exists (
                    select 1 from runs
                    where job_id = new.job_id and status = new.outcome
                        and (new.stage <> 'CANCELLED' or failure_kind = 'cancelled')))
            or (new.started_at is null and exists (select 1 from runs where job_id = new.job_id)));

rule job_ends_once before update of started_at, worker_id, finished_at, outcome, cancelled_at, cancel_requested_at, cancel_mode, cancel_reason on jobs
    refuse 'what is written when a job starts or ends is written once'
    when (old.stage <> 'QUEUED'
            and (new.started_at is distinct from old.started_at or new.worker_id is distinct from old.worker_id))
        or (old.finished_at is not null
            and (new.finished_at is distinct from old.finished_at or new.outcome is distinct from old.outcome
                or new.cancelled_at is distinct from old.cancelled_at
                or new.cancel_requested_at is distinct from old.cancel_requested_at
                or new.cancel_mode is distinct from old.cancel_mode
                or new.cancel_reason is distinct from old.cancel_reason));

rule job_decided_once before update of decision on jobs
    refuse 'what follows a failure is decided once'
    when old.decision is not null and old.decision <> 'undecided' and new.decision is distinct from old.decision;

rule run_born_running before insert on runs
    refuse 'a run begins unfinished, for a job that is QUEUED'
    when (new.status is not null
            or not exists (select 1 from jobs where job_id = new.job_id and stage = 'QUEUED'))
        and not exists (select 1 from maintenance);

rule run_inserted_once before insert on runs
    refuse 'a job has one run (DEC-001), and a run cannot be replaced'
    when exists (select 1 from runs where run_id = new.run_id or job_id = new.job_id);

rule run_kept before delete on runs
    refuse 'a run is never deleted outside maintenance'
    when not exists (select 1 from maintenance);

rule run_identity before update of run_id, job_id, template_id, params_snapshot, started_at, timeout_at on runs
    refuse 'what a run is never changes (INV-002)'
    when new.run_id <> old.run_id or new.job_id <> old.job_id or new.template_id is distinct from old.template_id
        or new.params_snapshot <> old.params_snapshot or new.started_at <> old.started_at
        or new.timeout_at is distinct from old.timeout_at;

rule run_written_once before update on runs
    refuse 'the outcome of a run is written once (INV-002)'
    when (old.finished_at is not null
            and (new.status is distinct from old.status or new.finished_at is distinct from old.finished_at
                or new.exit_code is distinct from old.exit_code or new.error is distinct from old.error
                or new.failure_kind is distinct from old.failure_kind or new.reason is distinct from old.reason
                or new.result is distinct from old.result))
        or (old.log_path is not null and new.log_path is distinct from old.log_path)
        or (old.session_id is not null and new.session_id is distinct from old.session_id);

rule artifact_inserted_once before insert on artifacts
    refuse 'artifacts are only added (INV-002)'
    when exists (select 1 from artifacts where run_id = new.run_id and name = new.name);

rule artifact_fixed before update on artifacts
    refuse 'artifacts are only added (INV-002)'
    when 1 = 1;

rule artifact_kept before delete on artifacts
    refuse 'artifacts are only added (INV-002)'
    when not exists (select 1 from maintenance);

rule event_fixed before update on events
    refuse 'events are only appended'
    when 1 = 1;

-- A number that is left to the database is not positive yet at this point, or not in use.
rule event_inserted_once before insert on events
    refuse 'events are only appended'
    when new.seq > 0 and exists (select 1 from events where seq = new.seq);

rule event_kept before delete on events
    refuse 'events are only appended'
    when not exists (select 1 from maintenance);

rule event_newest_kept before delete on events
    refuse 'the newest event is kept, so that its number is not given again'
    when old.seq = (select max(seq) from events);

rule reservation_inserted_once before insert on reservations
    refuse 'a reservation cannot be replaced'
    when exists (select 1 from reservations where reservation_id = new.reservation_id)
        or (new.status = 'ACTIVE'
            and exists (select 1 from reservations where office_id = new.office_id and status = 'ACTIVE'));

rule reservation_moves before update of status on reservations
    refuse 'a reservation that was released or has expired stays so (spec 11.3)'
    when old.status <> 'ACTIVE' and new.status <> old.status;

rule reservation_identity before update of reservation_id, office_id, reserved_at, reserved_by on reservations
    refuse 'what a reservation is never changes'
    when new.reservation_id <> old.reservation_id or new.office_id <> old.office_id
        or new.reserved_at <> old.reserved_at or new.reserved_by <> old.reserved_by;

rule reservation_kept before delete on reservations
    refuse 'a reservation is never deleted outside maintenance'
    when not exists (select 1 from maintenance);

rule direct_born_waiting before insert on direct_executions
    refuse 'a direct execution begins WAITING, and cannot be replaced'
    when (new.status <> 'WAITING' and not exists (select 1 from maintenance))
        or exists (select 1 from direct_executions where direct_id = new.direct_id or arrival = new.arrival);

rule direct_moves before update of status on direct_executions
    refuse 'illegal move of a direct execution'
    when new.status <> old.status
        and not (old.status = 'WAITING' and new.status in ('RUNNING', 'FAILED', 'CANCELLED'))
        and not (old.status = 'RUNNING' and new.status in ('COMPLETED', 'FAILED', 'SKIPPED'));

rule direct_written_once before update on direct_executions
    refuse 'what a direct execution is never changes, and how it ended is written once'
    when new.direct_id <> old.direct_id or new.node_id <> old.node_id or new.office_id <> old.office_id
        or new.job_type <> old.job_type
        or new.params <> old.params or new.created_at <> old.created_at or new.arrival <> old.arrival
        or old.finished_at is not null;

rule direct_kept before delete on direct_executions
    refuse 'a direct execution is never deleted outside maintenance'
    when not exists (select 1 from maintenance);
