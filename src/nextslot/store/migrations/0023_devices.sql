-- Devices: units of a node's resource that have names, such as its GPUs. A device has one holder at a time.
create table device_holds (
    node_id text not null,
    resource text not null,
    device text not null,
    worker_id text not null,
    primary key (node_id, resource, device)
) {table};
create index device_holds_worker on device_holds (worker_id);

-- By resource, the devices that a run had; null: its resources have no names.
alter table runs add column devices text;
alter table direct_executions add column devices text;
