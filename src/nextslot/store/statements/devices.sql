-- held: the devices of a node that running work holds, each with its worker
select resource, device, worker_id from device_holds where node_id = :node_id;

-- hold: stores that starting work holds a device; the key refuses a device that other work holds
insert into device_holds (node_id, resource, device, worker_id) values (:node_id, :resource, :device, :worker_id);

-- release: frees the devices of a worker whose work has ended
delete from device_holds where worker_id = :worker_id;

-- release_left: frees devices of workers that run nothing, left by a crash or by another configuration
delete from device_holds
where not exists (select 1 from jobs where jobs.worker_id = device_holds.worker_id and jobs.stage = 'RUNNING'
        and jobs.finished_at is null)
    and not exists (select 1 from direct_executions where direct_executions.worker_id = device_holds.worker_id
        and direct_executions.status = 'RUNNING');
