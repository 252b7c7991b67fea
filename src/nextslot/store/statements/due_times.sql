-- offset: by what the due times are counted that a node has stored
select clock_offset from nodes where node_id = :node_id;

-- count_by: a node's due times are counted by this from now on
update nodes set clock_offset = :clock_offset where node_id = :node_id;

-- shift_runs: when the time of what a node runs is up; only under maintenance
update runs set timeout_at = timeout_at + :shift
where status is null and timeout_at is not null and job_id in (
    select job_id from jobs where stage = 'RUNNING' and finished_at is null
        and worker_id >= :node_id || '/slot-' and worker_id < :node_id || '/slot.');

-- shift_callers: when the patience of a node's callers ends, or the time of their work is up
update direct_executions set wait_until = wait_until + :shift, timeout_at = timeout_at + :shift
where status in ('WAITING', 'RUNNING') and node_id = :node_id;

-- shift_reservations: when the reservations of a node's callers expire
update reservations set expires_at = expires_at + :shift where status = 'ACTIVE' and reserved_by = :node_id;

-- shift_reservation_ages: since when reservations are held, which decides who is first; only under maintenance
update reservations set reserved_at = reserved_at + :shift where status = 'ACTIVE';

-- shift_ages: since when jobs have been passed over
update jobs set passed_over_since = passed_over_since + :shift where stage = 'QUEUED' and passed_over_since is not null;

-- shift_steps: when jobs get their next step of aging
update jobs set ages_at = ages_at + :shift where stage = 'QUEUED' and ages_at is not null;

-- shift_retries: when retries are due
update jobs set scheduled_for = scheduled_for + :shift where stage = 'QUEUED' and is_due = 0 and retry_of is not null;

-- shift_answers: when signals get their default answers
update jobs set answer_by = answer_by + :shift where stage = 'QUEUED' and is_awaiting = 1 and answer_by is not null;

-- shift_deliveries: when deliveries are tried next
update deliveries set next_attempt_at = next_attempt_at + :shift where status = 'PENDING';

-- shift_probes: when resources that do not answer are tried next
update outages set probe_at = probe_at + :shift, quota_until = quota_until + :shift where probe_at is not null;

-- shift_affinities: since when jobs are passed over for those of another affinity
update affinities set passed_since = passed_since + :shift where passed_since is not null;

-- shift_rates: when buckets are full again, and when they let work start
update rates set full_at = full_at + :shift, wake_at = wake_at + :shift where full_at > 0;
