-- offset: the clock offset on which the stored due times of a node are based
select clock_offset from nodes where node_id = :node_id;

-- count_by: stores the clock offset on which the due times of a node are based from now on
update nodes set clock_offset = :clock_offset where node_id = :node_id;

-- shift_runs: moves the timeouts of a node's runs; only under maintenance
update runs set timeout_at = timeout_at + :shift
where status is null and timeout_at is not null and job_id in (
    select job_id from jobs where stage = 'RUNNING' and finished_at is null
        and worker_id >= :node_id || '/slot-' and worker_id < :node_id || '/slot.');

-- shift_callers: moves the wait timeouts of a node's callers, and the timeouts of their work
update direct_executions set wait_until = wait_until + :shift, timeout_at = timeout_at + :shift
where status in ('WAITING', 'RUNNING') and node_id = :node_id;

-- shift_reservations: moves the expiry of the reservations of a node's callers
update reservations set expires_at = expires_at + :shift where status = 'ACTIVE' and reserved_by = :node_id;

-- shift_reservation_ages: moves the times since when reservations are held, which decide the order; only under maintenance
update reservations set reserved_at = reserved_at + :shift where status = 'ACTIVE';

-- shift_ages: moves the times since when jobs are passed over
update jobs set passed_over_since = passed_over_since + :shift where stage = 'QUEUED' and passed_over_since is not null;

-- shift_steps: moves the times of the next aging steps of jobs
update jobs set ages_at = ages_at + :shift where stage = 'QUEUED' and ages_at is not null;

-- shift_retries: moves the times of retries
update jobs set scheduled_for = scheduled_for + :shift where stage = 'QUEUED' and is_due = 0 and retry_of is not null;

-- shift_answers: moves the deadlines of signals
update jobs set answer_by = answer_by + :shift where stage = 'QUEUED' and is_awaiting = 1 and answer_by is not null;

-- shift_deliveries: moves the times of the next attempts of deliveries
update deliveries set next_attempt_at = next_attempt_at + :shift where status = 'PENDING';

-- shift_probes: moves the times of the next probes of held resources
update outages set probe_at = probe_at + :shift, quota_until = quota_until + :shift where probe_at is not null;

-- shift_affinities: moves the times since when jobs are passed over for another affinity
update affinities set passed_since = passed_since + :shift where passed_since is not null;

-- shift_rates: moves the times at which buckets are full again, and at which they let work start
update rates set full_at = full_at + :shift, wake_at = wake_at + :shift where full_at > 0;
