-- columns: all columns of a node, in the order in which nodes.py reads them; its running work without that on engines
node_id, life, status, is_draining, host, pid, version, max_running, resources, job_types, joined_at, renewed_at,
lease_until, ended_at,
(select count(*) from jobs where stage = 'RUNNING' and finished_at is null and worker_id >= node_id || '/slot-'
    and worker_id < node_id || '/slot-:')
+ (select count(*) from direct_executions where status = 'RUNNING' and direct_executions.node_id = nodes.node_id),
(select count(*) from cluster where leader = node_id)

-- register: stores that a node begins a new life; it gets a lease where several nodes share the database
insert into nodes (node_id, life, status, is_draining, host, pid, version, max_running, resources, job_types, address,
    joined_at, renewed_at, lease_until)
values (:node_id, 1, 'live', 0, :host, :pid, :version, :max_running, :resources, :job_types, :address, :now, :now,
    {nodes.now} + :lease_us)
on conflict (node_id) do update set life = nodes.life + 1, status = 'live', is_draining = 0, host = excluded.host,
    pid = excluded.pid, version = excluded.version, max_running = excluded.max_running, resources = excluded.resources,
    job_types = excluded.job_types, address = excluded.address, joined_at = excluded.joined_at, renewed_at = excluded.renewed_at,
    lease_until = excluded.lease_until, ended_at = null
returning life;

-- address: the address and the machine of a live node
select address, host from nodes where node_id = :node_id and status = 'live';

-- share_secret: stores the secret of the first node that joins, for all nodes
update cluster set files_secret = :secret where files_secret is null;

-- files_secret: the secret by which nodes recognise each other
select files_secret from cluster;

-- now: the time of the clock that leases use
:now

-- replace: ends all other nodes and drops their resources, where only one node can exist
update nodes set status = case when status = 'live' then 'lost' else status end, ended_at = coalesce(ended_at, :now),
    lease_until = null, resources = :nothing where node_id <> :node_id;

-- leave: stores that a node has ended in good order
update nodes set status = 'left', ended_at = :now, lease_until = null where node_id = :node_id and life = :life
    and status = 'live';

-- lose: marks nodes as lost that have not renewed their lease in time
update nodes set status = 'lost', ended_at = :now, lease_until = null where status = 'live' and lease_until < {nodes.now}
returning node_id;

-- lapsed: nodes that have not renewed their lease in time
select node_id from nodes where status = 'live' and lease_until < {nodes.now};

-- time: the time of the clock that leases use
select {nodes.now};

-- patience: how long the last life of a node may still hold its lease, in microseconds, and its machine
select host, lease_until - {nodes.now} from nodes where node_id = :node_id and status = 'live';

-- forget: stores that a dead node will not come back, and drops its resources
update nodes set status = 'forgotten', resources = :nothing where node_id = :node_id and status in ('left', 'lost');

-- all: every node that is not forgotten
select {nodes.columns} from nodes where status <> 'forgotten' order by node_id;

-- get: one node
select {nodes.columns} from nodes where node_id = :node_id and status <> 'forgotten';

-- drain: stores whether a node is drained and starts nothing
update nodes set is_draining = :is_draining where node_id = :node_id and status = 'live' and is_draining <> :is_draining;

-- job_types: stores the job types that a node runs
update nodes set job_types = :job_types where node_id = :node_id and life = :life and job_types <> :job_types;

-- touch: stores when a node was last seen
update nodes set renewed_at = :now where node_id = :node_id;

-- lead: makes this node the leader
update cluster set leader = :node_id where leader is distinct from :node_id;

-- settings_changed: counts a change of what every node caches, so that all nodes read it again
update cluster set settings = settings + 1;

-- homeless: dead nodes with unfinished work
select distinct node_id from nodes where status <> 'live' and (
    exists (select 1 from jobs where jobs.stage = 'RUNNING' and finished_at is null
        and worker_id >= node_id || '/slot-' and worker_id < node_id || '/slot.')
    or exists (select 1 from direct_executions where direct_executions.node_id = nodes.node_id
        and direct_executions.status in ('WAITING', 'RUNNING')))
order by node_id;

-- to_stop: running work of a node that must stop, in case the node missed the request
select runs.run_id from jobs join runs on runs.job_id = jobs.job_id
where jobs.stage = 'RUNNING' and jobs.finished_at is null and jobs.cancel_mode = 'interrupt'
    and worker_id >= :node_id || '/slot-' and worker_id < :node_id || '/slot.'
union all
select run_id from direct_executions
where status = 'RUNNING' and cancel_requested_at is not null and node_id = :node_id;
