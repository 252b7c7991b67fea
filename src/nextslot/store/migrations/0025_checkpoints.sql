-- The last checkpoint of each chain: what its work has stored for the attempt after it. One row a chain, replaced by the
-- next one; only the run that has not ended may write it (statement `checkpoints.keep`).

create table checkpoints (
    chain_id text not null primary key,
    run_id text not null references runs,
    stored_at {int} not null,
    value text not null
) {table};

create index checkpoints_run on checkpoints (run_id);
