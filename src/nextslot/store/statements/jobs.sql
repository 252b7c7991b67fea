-- insert: stores a new job
insert into jobs ({jobs.new_columns}, stage) values ({jobs.new_values}, 'QUEUED');

-- get: one job
select {jobs.columns} from jobs where job_id = :job_id;

-- get_many: several jobs, by a JSON object whose keys are the ids
select {jobs.columns} from jobs where job_id in (select key from json_each(:job_ids));

-- chains: (job_id, chain_id, office_id) of several jobs
select job_id, chain_id, office_id from jobs where job_id in (select key from json_each(:job_ids));

-- by_unique_key: the unfinished job with this key
select {jobs.columns} from jobs where office_id = :office_id and unique_key = :unique_key and finished_at is null;

-- last_position: the last position among an office's jobs of a level, and the largest one of the office if its jobs age
select max(position), (select last_position from offices where offices.office_id = :office_id) from jobs
where office_id = :office_id and order_priority = :priority and stage = 'QUEUED';

-- brief: the columns of a job that its execution needs
params, chain_id, group_id, retry_of, timeout_seconds, stall_timeout_seconds, title, role, task_id, depends_on, await_signal

-- heads: the first ready jobs of a lane, in order (INV-004)
select job_id, order_priority, position, created_at, passed_over_since, {jobs.brief} from jobs
where lane_id = :lane_id and stage = 'QUEUED' and unmet = 0 and is_due = 1 and is_turn = 1
order by order_priority desc, position, created_at, job_id limit :limit;

-- firsts: the first ready job of each of several lanes, by a JSON object whose keys are the lanes
select jobs.lane_id, jobs.job_id, jobs.order_priority, jobs.position, jobs.created_at, jobs.passed_over_since, {jobs.brief}
from json_each(:lane_ids) wanted join jobs on jobs.job_id = (
    select first.job_id from jobs first
    where first.lane_id = cast(wanted.key as bigint) and first.stage = 'QUEUED' and first.unmet = 0 and first.is_due = 1
        and first.is_turn = 1
    order by first.order_priority desc, first.position, first.created_at, first.job_id limit 1
);

-- start: starts a queued job; its run has been inserted just before
update jobs set stage = 'RUNNING', started_at = :now, worker_id = :worker_id
where job_id = :job_id and stage = 'QUEUED';

-- ending_facts: the facts for the decision at the end of a run: only of a running job whose run has not ended
select office_id, lane_id, chain_id, group_id, sequence, retry_of, worker_id, webhook is not null, started_at,
    retry_policy, cancel_mode,
    exists (select 1 from dependencies where dependencies.chain_id = jobs.chain_id and dependencies.is_met = 0),
    queued_at, scheduled_for, (select park from runs where runs.run_id = :run_id),
    (select began_at from runs where runs.run_id = :run_id)
from jobs
where job_id = :job_id and stage = 'RUNNING' and finished_at is null
    and exists (select 1 from runs where runs.run_id = :run_id and runs.status is null);

-- succeed: ends a running job with its run; sets no column that an index of waiting or undecided jobs uses
update jobs set finished_at = :now, outcome = :outcome
where job_id = :job_id and stage = 'RUNNING' and finished_at is null;

-- fail: ends a running job with its run, and stores the decision about what follows
update jobs set finished_at = :now, outcome = 'FAILED', decision = :decision,
    error_line = :error_line, fingerprint = :fingerprint
where job_id = :job_id and stage = 'RUNNING' and finished_at is null;

-- stop: ends a running job that has stopped as requested
update jobs set stage = 'CANCELLED', finished_at = :now, cancelled_at = :now, outcome = 'FAILED', decision = 'cancelled'
where job_id = :job_id and stage = 'RUNNING' and finished_at is null;

-- cancel: ends a queued job without a run
update jobs set stage = 'CANCELLED', finished_at = :now, cancelled_at = :now, cancel_reason = :reason,
    cancel_requested_at = :requested_at
where job_id = :job_id and stage = 'QUEUED';

-- request_cancel: stores that a running job must stop, or that no retry may follow it
update jobs set cancel_requested_at = coalesce(cancel_requested_at, :now), cancel_mode = :mode,
    cancel_reason = coalesce(cancel_reason, :reason)
where job_id = :job_id and stage = 'RUNNING' and finished_at is null;

-- decide: stores what follows a failure that had no decision
update jobs set decision = :decision where job_id = :job_id and decision = 'undecided';

-- undecided: failures without a decision, for recovery
select {jobs.columns} from jobs where decision = 'undecided' order by job_id limit :limit;

-- close_with_run: ends a job whose run had ended before the crash (spec 15.2)
update jobs set finished_at = :finished_at, outcome = :outcome, decision = :decision,
    error_line = :error_line, fingerprint = :fingerprint
where job_id = :job_id and stage = 'RUNNING' and finished_at is null;

-- running: running jobs in the order of their slots, for recovery; without those that an engine runs (a join would leave the index)
select {jobs.columns} from jobs
where stage = 'RUNNING' and finished_at is null
    and job_id not in (select placements.job_id from placements)
order by length(worker_id), worker_id limit :limit;

-- running_on: the running jobs of one node
select {jobs.columns} from jobs
where stage = 'RUNNING' and finished_at is null and worker_id >= :node_id || '/slot-' and worker_id < :node_id || '/slot.'
    and job_id not in (select placements.job_id from placements)
order by length(worker_id), worker_id limit :limit;

-- chain: the whole chain of a first job, oldest first (ids are ordered by time)
select {jobs.columns} from jobs where job_id = :chain_id or (chain_id = :chain_id and retry_of is not null)
order by created_at, job_id;

-- chain_links: (job_id, retry_of, failure_kind, beside) of a whole chain
select jobs.job_id, jobs.retry_of, runs.failure_kind, runs.beside from jobs left join runs on runs.job_id = jobs.job_id
where jobs.job_id = :chain_id or (jobs.chain_id = :chain_id and jobs.retry_of is not null);

-- first_start: when the first job of a chain that ran started
select min(started_at) from jobs where job_id = :chain_id or (chain_id = :chain_id and retry_of is not null);

-- successor: the retry of a job, if there is one
select job_id from jobs where retry_of = :job_id;

-- due: waiting jobs whose time has come
update jobs set is_due = 1
where job_id in (select job_id from jobs where stage = 'QUEUED' and is_due = 0 and scheduled_for <= :now
    order by scheduled_for limit :limit)
returning job_id, office_id, lane_id, unmet, is_due, is_turn, order_priority, position, is_awaiting;

-- reschedule: stores another time for a waiting or queued job
update jobs set scheduled_for = :scheduled_for, is_due = :is_due where job_id = :job_id and stage = 'QUEUED';

-- give_turn: stores that the turn of a job in its group has come
update jobs set is_turn = 1 where job_id = :job_id and stage = 'QUEUED' and is_turn = 0
returning job_id, office_id, lane_id, unmet, is_due, is_turn, order_priority, position, is_awaiting;

-- met: counts one more prerequisite of a job as met
update jobs set unmet = unmet - 1 where job_id = :job_id and unmet > 0
returning job_id, office_id, lane_id, unmet, is_due, is_turn, order_priority, position, is_awaiting, stage;

-- asked: stores that a job waits only for its signal
update jobs set asked_at = :now, answer_by = :answer_by where job_id = :job_id and stage = 'QUEUED' and is_awaiting = 1;

-- answered: stores that the signal of a job has come
update jobs set is_awaiting = 0, unmet = unmet - 1
where job_id = :job_id and stage = 'QUEUED' and is_awaiting = 1
returning job_id, office_id, lane_id, unmet, is_due, is_turn, order_priority, position, is_awaiting;

-- unanswered: jobs whose signal has not come by its deadline
select {jobs.columns} from jobs
where stage = 'QUEUED' and is_awaiting = 1 and answer_by <= :now order by answer_by limit :limit;

-- expired: queued jobs that did not start in time
select {jobs.columns} from jobs
where stage = 'QUEUED' and expires_at <= :now order by expires_at limit :limit;

-- next_instants: the earliest instant of each kind of work of the timer
select (select min(scheduled_for) from jobs where stage = 'QUEUED' and is_due = 0),
    (select min(answer_by) from jobs where stage = 'QUEUED' and is_awaiting = 1 and answer_by is not null),
    (select min(expires_at) from jobs where stage = 'QUEUED' and expires_at is not null);

-- pass_over: stores since when a limit holds a job back while others start; an earlier time stays
update jobs set passed_over_since = :now where job_id = :job_id and stage = 'QUEUED' and passed_over_since is null;

-- starving: ready jobs that have been passed over for too long, the longest first
select office_id, lane_id, job_id, order_priority, position, created_at, passed_over_since, {jobs.brief} from jobs
where stage = 'QUEUED' and passed_over_since <= :since and unmet = 0 and is_due = 1 and is_turn = 1
order by passed_over_since, job_id limit :limit;

-- set_place: stores the priority and position of a queued job; removes its steps, and counts the next from now
update jobs set priority = :priority, position = :position, aged_steps = 0, ages_at = :ages_at
where job_id = :job_id and stage = 'QUEUED';

-- set_position: stores the position of a job that makes room for another; the job goes on aging, or begins to age
update jobs set position = :position, ages_at = coalesce(ages_at, :ages_at) where job_id = :job_id and stage = 'QUEUED';

-- begin_aging: stores when jobs that became ready get their next step, by a JSON object whose keys are the ids
update jobs set ages_at = :ages_at
where job_id in (select key from json_each(:job_ids)) and stage = 'QUEUED' and priority < 1000000;

-- to_age: queued jobs whose next step is due, with the period of their office
select jobs.job_id, jobs.lane_id, jobs.position, jobs.priority, jobs.aged_steps, jobs.ages_at,
    case when jobs.unmet = 0 and jobs.is_due = 1 and jobs.is_turn = 1 then 1 else 0 end, offices.priority_aging_seconds
from jobs join offices on offices.office_id = jobs.office_id
where jobs.stage = 'QUEUED' and jobs.ages_at <= :now order by jobs.ages_at limit :limit;

-- age: stores the steps of a queued job, and when it gets the next one
update jobs set aged_steps = :aged_steps, ages_at = :ages_at where job_id = :job_id and stage = 'QUEUED';

-- age_at_latest: stores when a queued job gets its next step at the latest
update jobs set ages_at = :ages_at where job_id = :job_id and stage = 'QUEUED' and (ages_at is null or ages_at > :ages_at);

-- next_step: when the next step of any job is due
select min(ages_at) from jobs where stage = 'QUEUED' and ages_at is not null;

-- set_params: stores other parameters for a queued job, and the limits that follow from them
update jobs set params = :params, resources = :resources, affinity = :affinity, lane_id = :lane_id
where job_id = :job_id and stage = 'QUEUED';

-- set_title: stores the title of a queued job
update jobs set title = :title where job_id = :job_id and stage = 'QUEUED';

-- last: the last queued job of an office
select job_id, order_priority, position, created_at from jobs where office_id = :office_id and stage = 'QUEUED' and job_id <> :but
order by order_priority, position desc, created_at desc, job_id desc limit 1;

-- nth: the queued job at a place, counted from 0, not counting the job that moves
select job_id, order_priority, position, created_at from jobs where office_id = :office_id and stage = 'QUEUED' and job_id <> :but
order by order_priority desc, position, created_at, job_id limit 1 offset :place;

-- position_before: the position of the job just before a place, on its level
select position from jobs
where office_id = :office_id and order_priority = :priority and stage = 'QUEUED'
    and (position, created_at, job_id) < (:position, :created_at, :job_id) and job_id <> :but
order by position desc, created_at desc, job_id desc limit 1;

-- from_position: the queued jobs of a level from a place on, without the job that moves and the job that it follows
select job_id, position, lane_id, unmet = 0 and is_due = 1 and is_turn = 1 from jobs
where office_id = :office_id and order_priority = :priority and stage = 'QUEUED'
    and (position, created_at, job_id) >= (:position, :created_at, :job_id) and job_id not in (:but, :after)
order by position, created_at, job_id limit :limit;

-- queue: a page of an office's queue in its order, after the given place
select {jobs.columns} from jobs
where office_id = :office_id and stage = 'QUEUED'
    and (order_priority < :priority or (order_priority = :priority and (position, created_at, job_id) > (:position, :created_at, :job_id)))
order by order_priority desc, position, created_at, job_id limit :limit;

-- queue_places: a page of the places of an office's queue, and whether each job may age: it is ready, and not in front
select job_id, order_priority, position, created_at,
    case when unmet = 0 and is_due = 1 and is_turn = 1 and order_priority < 999999 then 1 else 0 end from jobs
where office_id = :office_id and stage = 'QUEUED'
    and (order_priority < :priority or (order_priority = :priority and (position, created_at, job_id) > (:position, :created_at, :job_id)))
order by order_priority desc, position, created_at, job_id limit :limit;

-- running_of: the running jobs of an office
select {jobs.columns} from jobs
where stage = 'RUNNING' and finished_at is null and office_id = :office_id order by started_at, job_id;

-- members_after: the next member of a sequential group that has not started
select job_id from jobs
where group_id = :group_id and sequence = :sequence and retry_of is null;

-- unstarted_members: members of a group that have not started: queued jobs that are no retries
select {jobs.columns} from jobs
where group_id = :group_id and stage = 'QUEUED' and retry_of is null order by sequence limit :limit;

-- queued_members: queued jobs of a group, retries too
select {jobs.columns} from jobs where group_id = :group_id and stage = 'QUEUED' order by sequence limit :limit;

-- live_members: unfinished jobs of a group
select {jobs.columns} from jobs where group_id = :group_id and finished_at is null order by sequence limit :limit;

-- members: every job of a group, by place and then by age
select {jobs.columns} from jobs where group_id = :group_id order by sequence, created_at, job_id;
