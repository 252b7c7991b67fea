-- The machines that share a database, and what they must agree on. On SQLite there is one, and it leads.

-- A node has one life after the other; each is a new number, so that what an earlier one still holds for its own is
-- known to be over: so the row of one that was forgotten stays. Without a lease it cannot be lost: it is alone, or its database is one file.
create table nodes (
    node_id text not null primary key,
    life {int} not null check (life > 0),
    status text not null check (status in ('live', 'left', 'lost', 'forgotten')),
    is_draining {int} not null check (is_draining in (0, 1)),
    host text not null,
    pid {int} not null,
    version text not null,
    max_running {int} not null check (max_running >= 0),
    resources text not null,
    job_types text not null,
    joined_at {int} not null,
    renewed_at {int} not null,
    lease_until {int},
    ended_at {int},
    -- By how many microseconds the node's time is ahead of its monotonic clock: by this its due times are counted.
    clock_offset {int},
    check ((status = 'live') = (ended_at is null))
) {table};

rule node_comes_back_anew before update of status, life on nodes
    refuse 'a node that has left or was lost comes back with a new life'
    when new.life < old.life or (old.status <> 'live' and new.status = 'live' and new.life = old.life);

-- One row: how often the settings were changed that every node keeps in memory, and who leads.
create table cluster (
    one {int} not null primary key check (one = 1),
    settings {int} not null,
    leader text
) {table};

insert into cluster (one, settings, leader) values (1, 0, null);
