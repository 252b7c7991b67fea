-- columns: a whole node, in the order that nodes.py reads it
node_id, life, status, is_draining, host, pid, version, max_running, resources, job_types, joined_at, renewed_at,
lease_until, ended_at,
(select count(*) from jobs where stage = 'RUNNING' and finished_at is null and worker_id >= node_id || '/slot-'
    and worker_id < node_id || '/slot.')
+ (select count(*) from direct_executions where status = 'RUNNING' and direct_executions.node_id = nodes.node_id),
(select count(*) from cluster where leader = node_id)

-- register: a node begins a new life; it has a lease where several share the database
insert into nodes (node_id, life, status, is_draining, host, pid, version, max_running, resources, job_types, address,
    joined_at, renewed_at, lease_until)
values (:node_id, 1, 'live', 0, :host, :pid, :version, :max_running, :resources, :job_types, :address, :now, :now,
    {nodes.now} + :lease_us)
on conflict (node_id) do update set life = nodes.life + 1, status = 'live', is_draining = 0, host = excluded.host,
    pid = excluded.pid, version = excluded.version, max_running = excluded.max_running, resources = excluded.resources,
    job_types = excluded.job_types, address = excluded.address, joined_at = excluded.joined_at, renewed_at = excluded.renewed_at,
    lease_until = excluded.lease_until, ended_at = null
returning life;

-- address: where a node answers, and on which machine; only while it is alive
select address, host from nodes where node_id = :node_id and status = 'live';

-- share_secret: the first node that joins stores it, for all
update cluster set files_secret = :secret where files_secret is null;

-- files_secret: by which nodes know each other
select files_secret from cluster;

-- now: by the clock that leases go by
:now

-- replace: where there can be one only, earlier ones of other names are gone, and what they had with them
update nodes set status = case when status = 'live' then 'lost' else status end, ended_at = coalesce(ended_at, :now),
    lease_until = null, resources = :nothing where node_id <> :node_id;

-- leave: a node has ended in good order
update nodes set status = 'left', ended_at = :now, lease_until = null where node_id = :node_id and life = :life
    and status = 'live';

-- lose: those who have not renewed their lease in time are taken for dead
update nodes set status = 'lost', ended_at = :now, lease_until = null where status = 'live' and lease_until < {nodes.now}
returning node_id;

-- lapsed: those who should be taken for dead
select node_id from nodes where status = 'live' and lease_until < {nodes.now};

-- time: the time of the clock that leases go by
select {nodes.now};

-- patience: how long the last life of a node may go on working elsewhere, in microseconds
select host, lease_until - {nodes.now} from nodes where node_id = :node_id and status = 'live';

-- forget: one that is gone will not come back, and what it had is nowhere any more
update nodes set status = 'forgotten', resources = :nothing where node_id = :node_id and status in ('left', 'lost');

-- all: every node that was seen and not forgotten
select {nodes.columns} from nodes where status <> 'forgotten' order by node_id;

-- get: one node
select {nodes.columns} from nodes where node_id = :node_id and status <> 'forgotten';

-- drain: a node starts nothing any more, or again
update nodes set is_draining = :is_draining where node_id = :node_id and status = 'live' and is_draining <> :is_draining;

-- job_types: what a node can run has changed
update nodes set job_types = :job_types where node_id = :node_id and life = :life and job_types <> :job_types;

-- touch: a node was seen
update nodes set renewed_at = :now where node_id = :node_id;

-- lead: this node does for all what one must do
update cluster set leader = :node_id where leader is distinct from :node_id;

-- settings_changed: what every node keeps in memory has to be read again
update cluster set settings = settings + 1;

-- homeless: nodes that are gone and have something running
select distinct node_id from nodes where status <> 'live' and (
    exists (select 1 from jobs where jobs.stage = 'RUNNING' and finished_at is null
        and worker_id >= node_id || '/slot-' and worker_id < node_id || '/slot.')
    or exists (select 1 from direct_executions where direct_executions.node_id = nodes.node_id
        and direct_executions.status in ('WAITING', 'RUNNING')))
order by node_id;

-- to_stop: what a node runs that is to be stopped, and has perhaps not heard of it
select runs.run_id from jobs join runs on runs.job_id = jobs.job_id
where jobs.stage = 'RUNNING' and jobs.finished_at is null and jobs.cancel_mode = 'interrupt'
    and worker_id >= :node_id || '/slot-' and worker_id < :node_id || '/slot.'
union all
select run_id from direct_executions
where status = 'RUNNING' and cancel_requested_at is not null and node_id = :node_id;
