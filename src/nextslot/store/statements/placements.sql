-- columns: all columns of a placement, in the order in which placements.py reads them
placements.run_id, placements.spec, placements.state, placements.handle, placements.token_hash, placements.placed_at,
placements.claimed_at, placements.lease_until

-- begin: stores the placement of a run that starts on an engine
insert into placements (run_id, job_id, engine, state, spec, token_hash, placed_at)
values (:run_id, :job_id, :engine, 'submitting', :spec, :token_hash, :now);

-- untimed: removes the timeout of a run until its wrapper claims it: only then does the time begin
update runs set timeout_at = null, placement = :shown where run_id = :run_id and status is null;

-- set_token: replaces a token with which nothing was submitted, and which no directory contains
update placements set token_hash = :token_hash where run_id = :run_id and handle is null and claimed_at is null;

-- see: stores the state of a placed run and its handle
update placements set state = :state, handle = :handle where run_id = :run_id;

-- show: stores the same with the run, for readers
update runs set placement = :shown where run_id = :run_id and status is null;

-- claim: stores that the wrapper has claimed the run
update placements set claimed_at = :now, lease_until = :lease_until where run_id = :run_id and claimed_at is null;

-- time: stores when the work of a run has begun, and the timeout that counts from then
update runs set began_at = :now, timeout_at = :now + cast(:timeout_seconds * 1000000 as bigint)
where run_id = :run_id and status is null;

-- worked: stores when the work of a run began, as its wrapper has measured it
update runs set began_at = :began_at where run_id = :run_id and status is null and placement is not null;

-- renew: stores that the wrapper has renewed its lease
update placements set lease_until = :lease_until where run_id = :run_id and claimed_at is not null;

-- finish: deletes the placement of a run that has ended or was given up
delete from placements where run_id = :run_id;

-- get: the placement of a run
select {placements.columns} from placements where run_id = :run_id;

-- of_job: the placement of a job
select {placements.columns} from placements where job_id = :job_id;

-- here: the placements of a node
select job_id, {placements.columns} from placements where job_id in (
    select job_id from jobs where stage = 'RUNNING' and finished_at is null
        and worker_id >= :node_id || '/slot-' and worker_id < :node_id || '/slot.')
order by placed_at, run_id;

-- everywhere: all placements
select job_id, {placements.columns} from placements order by placed_at, run_id;

-- adopt: makes this node the follower of a run of a worker that is gone
update jobs set worker_id = :worker_id
where job_id = :job_id and stage = 'RUNNING' and finished_at is null and worker_id = :before;

-- counts: the number of placements of each engine in each state
select engine, state, count(*) from placements group by engine, state order by engine, state;
