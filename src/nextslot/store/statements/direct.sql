-- insert: stores a caller behind all others
insert into direct_executions ({direct.new_columns}, arrival, status, webhook)
select {direct.new_values}, coalesce(max(arrival), 0) + 1, 'WAITING', :webhook
from direct_executions;

-- set_silent: stores since when running work is silent; null if it is not
update direct_executions set silent_since = :since where run_id = :run_id and status = 'RUNNING';

-- get: one direct execution
select {direct.columns} from direct_executions where run_id = :run_id;

-- find: one direct execution by the id that its caller uses; no chosen id has the form of a run's id
select {direct.columns} from direct_executions where office_id = :office_id and direct_id = :direct_id
union
select {direct.columns} from direct_executions where run_id = :direct_id;

-- waiting_direct_ids: the waiting callers of an office in order, by the ids that the callers use
select direct_id from direct_executions where office_id = :office_id and status = 'WAITING' order by arrival;

-- waiting_ids: the waiting callers of an office in order
select run_id from direct_executions where office_id = :office_id and status = 'WAITING' order by arrival;

-- waiting_lanes: how many callers of an office wait, by lane
select lane_id, count(*) from direct_executions where office_id = :office_id and status = 'WAITING' group by lane_id;

-- first_waiting: the first waiting caller of each lane: first those with a reservation, by its age, then the others by arrival
select reservations.reserved_at, direct_executions.run_id, direct_executions.office_id, direct_executions.lane_id,
    direct_executions.node_id
from direct_executions left join reservations
    on reservations.run_id = direct_executions.run_id and reservations.status = 'ACTIVE'
where direct_executions.status = 'WAITING' and direct_executions.arrival in (
    select min(first.arrival) from direct_executions first where first.status = 'WAITING' group by first.lane_id)
order by reservations.reserved_at is null, reservations.reserved_at, reservations.reservation_id,
    direct_executions.arrival;

-- start: stores that the caller's work starts
update direct_executions set status = 'RUNNING', started_at = :now, worker_id = :worker_id, devices = :devices,
    timeout_at = :now + cast(timeout_seconds * 1000000 as bigint)
where run_id = :run_id and status = 'WAITING'
returning params, timeout_seconds, stall_timeout_seconds, direct_id;

-- finish: stores the end of the caller's work, once
update direct_executions set status = :status, finished_at = :now, exit_code = :exit_code, error = :error,
    failure_kind = :failure_kind, reason = :reason, log_path = :log_path, session_id = :session_id, result = :result,
    artifacts = :artifacts
where run_id = :run_id and status = 'RUNNING'
returning office_id, lane_id, worker_id;

-- give_up: ends the wait of a caller who leaves or is refused
update direct_executions set status = :status, finished_at = :now, reason = :reason, error = :error,
    failure_kind = :failure_kind
where run_id = :run_id and status = 'WAITING';

-- over: callers whose wait has timed out
select run_id from direct_executions where status = 'WAITING' and wait_until <= :now
    and node_id = coalesce(:node_id, node_id)
order by wait_until limit :limit;

-- overdue: running work that has timed out
select run_id from direct_executions where status = 'RUNNING' and timeout_at <= :now
    and node_id = coalesce(:node_id, node_id)
order by timeout_at limit :limit;

-- request_cancel: stores that the work must stop, on whatever node it runs
update direct_executions set cancel_requested_at = :now
where run_id = :run_id and status = 'RUNNING' and cancel_requested_at is null;

-- unfinished: direct executions that wait or run, for recovery
select {direct.columns} from direct_executions where status = 'RUNNING' and node_id = coalesce(:node_id, node_id)
union all
select {direct.columns} from direct_executions where status = 'WAITING' and node_id = coalesce(:node_id, node_id);

-- reserve: gives a caller the reservation of the next slot of an office
insert into reservations (reservation_id, run_id, office_id, reserved_at, reserved_by, expires_at, status)
select :reservation_id, run_id, office_id, :now, node_id, :expires_at, 'ACTIVE'
from direct_executions where run_id = :run_id;

-- is_reserved: whether an office has an ACTIVE reservation
select run_id from reservations where office_id = :office_id and status = 'ACTIVE';

-- release: ends the reservation of a caller
update reservations set status = :status where run_id = :run_id and status = 'ACTIVE'
returning reservation_id, office_id;

-- expire_orphaned: expires reservations whose execution does not wait or does not exist, and which block a queue for nobody
update reservations set status = 'EXPIRED'
where status = 'ACTIVE' and not exists (
    select 1 from direct_executions
    where direct_executions.run_id = reservations.run_id and direct_executions.status = 'WAITING')
returning reservation_id, run_id, office_id;

-- renew: extends a reservation whose caller is still connected
update reservations set expires_at = :expires_at where run_id = :run_id and status = 'ACTIVE';

-- expiring: reservations that expire soon
select run_id, expires_at from reservations
where status = 'ACTIVE' and expires_at <= :by and reserved_by = coalesce(:node_id, reserved_by) order by expires_at;

-- next_instants: the earliest instant of each kind of work of the timer
select (select min(wait_until) from direct_executions where status = 'WAITING' and node_id = coalesce(:node_id, node_id)),
    (select min(timeout_at) from direct_executions where status = 'RUNNING' and timeout_at > :now
        and node_id = coalesce(:node_id, node_id)),
    (select min(expires_at) from reservations
        where status = 'ACTIVE' and reserved_by = coalesce(:node_id, reserved_by));

-- webhook: the webhook that a caller gave
select webhook from direct_executions where run_id = :run_id;
