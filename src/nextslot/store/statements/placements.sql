-- columns: a whole placement, in the order that placements.py reads it
placements.run_id, placements.spec, placements.state, placements.handle, placements.token_hash, placements.placed_at,
placements.claimed_at, placements.lease_until

-- begin: a run starts on an engine
insert into placements (run_id, job_id, engine, state, spec, token_hash, placed_at)
values (:run_id, :job_id, :engine, 'submitting', :spec, :token_hash, :now);

-- untimed: its time counts from the claim of its wrapper, not from now
update runs set timeout_at = null, placement = :shown where run_id = :run_id and status is null;

-- set_token: nothing was submitted with the token before, which no directory knows
update placements set token_hash = :token_hash where run_id = :run_id and handle is null and claimed_at is null;

-- see: what is known of it now
update placements set state = :state, handle = :handle where run_id = :run_id;

-- show: the same for readers
update runs set placement = :shown where run_id = :run_id and status is null;

-- claim: its wrapper has begun
update placements set claimed_at = :now, lease_until = :lease_until where run_id = :run_id and claimed_at is null;

-- time: when the time of a run that has begun is up
update runs set timeout_at = :now + cast(:timeout_seconds * 1000000 as bigint) where run_id = :run_id and status is null;

-- renew: its wrapper was seen to go on
update placements set lease_until = :lease_until where run_id = :run_id and claimed_at is not null;

-- finish: it has ended, or nobody counts on it any more
delete from placements where run_id = :run_id;

-- get: that of a run
select {placements.columns} from placements where run_id = :run_id;

-- of_job: that of a job
select {placements.columns} from placements where job_id = :job_id;

-- here: those of a node
select job_id, {placements.columns} from placements where job_id in (
    select job_id from jobs where stage = 'RUNNING' and finished_at is null
        and worker_id >= :node_id || '/slot-' and worker_id < :node_id || '/slot.')
order by placed_at, run_id;

-- everywhere: all of them
select job_id, {placements.columns} from placements order by placed_at, run_id;

-- adopt: this node goes on with a run of a worker that is gone
update jobs set worker_id = :worker_id
where job_id = :job_id and stage = 'RUNNING' and finished_at is null and worker_id = :before;

-- counts: how many of each engine are in each state
select engine, state, count(*) from placements group by engine, state order by engine, state;
