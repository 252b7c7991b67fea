-- Work that was inside a scheduler's process that died runs alone until one of its runs survives.

-- The jobs of such a lane are such work: beside them nothing else starts inside the process of their node.
alter table lanes add column is_alone {int} not null default 0 check (is_alone in (0, 1));

-- What tells the dispatcher that there is none, which is the usual case: then this index is empty.
create index lanes_alone on lanes (lane_id) where is_alone = 1 and (ready > 0 or running > 0);

-- Whether a direct caller's work runs in the scheduler's own process, as `runs.is_inside`.
alter table direct_executions add column is_inside {int} not null default 0 check (is_inside in (0, 1));
