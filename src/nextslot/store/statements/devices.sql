-- held: the devices of a node that running work holds, and its worker
select resource, device, worker_id from device_holds where node_id = :node_id;

-- hold: work that starts gets a device; the key refuses a device that other work holds
insert into device_holds (node_id, resource, device, worker_id) values (:node_id, :resource, :device, :worker_id);

-- release: the work of a worker has ended
delete from device_holds where worker_id = :worker_id;

-- release_left: devices of workers that run nothing, which a crash or another configuration has left
delete from device_holds
where not exists (select 1 from jobs where jobs.worker_id = device_holds.worker_id and jobs.stage = 'RUNNING'
        and jobs.finished_at is null)
    and not exists (select 1 from direct_executions where direct_executions.worker_id = device_holds.worker_id
        and direct_executions.status = 'RUNNING');
