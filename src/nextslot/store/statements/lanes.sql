-- columns: the fixed part of a lane
lane_id, office_id, job_type, resources, local, shared, class_key

-- find: the lane of an office with these limits
select lane_id from lanes where office_id = :office_id and class_key = :class_key and local = :local;

-- add: a new lane
insert into lanes (lane_id, office_id, job_type, resources, local, shared, class_key, ready, is_open, turn,
    running, chains, completed, skipped, failed, cancelled, completion_us)
select coalesce(max(lane_id), 0) + 1, :office_id, :job_type, :resources, :local, :shared, :class_key, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0
from lanes
returning lane_id;

-- get: the fixed part of one lane
select {lanes.columns} from lanes where lane_id = :lane_id;

-- counts: what changes of one lane
select ready, is_open, turn from lanes where lane_id = :lane_id;

-- of_office: an office's pause, waiting callers, last turn and period of aging, with its lanes that have ready jobs (or one empty row)
select offices.is_paused,
    (select count(*) from direct_executions where direct_executions.office_id = :office_id and status = 'WAITING'),
    (select max(served.turn) from lanes served where served.office_id = :office_id), -- the parameter: once, not by lane
    offices.priority_aging_seconds, lanes.lane_id, lanes.ready, lanes.is_open, lanes.turn
from offices left join lanes on lanes.office_id = offices.office_id and lanes.ready > 0
where offices.office_id = :office_id;

-- waiting_offices: the offices that have ready jobs
select distinct office_id from lanes where ready > 0;

-- last_turn: the newest turn of any office
select max(turn) from lanes;

-- save: what has changed of a lane
update lanes set ready = :ready, is_open = :is_open, turn = :turn, running = running + :running, chains = chains + :chains,
    completed = completed + :completed, skipped = skipped + :skipped, failed = failed + :failed,
    cancelled = cancelled + :cancelled, completion_us = completion_us + :completion_us
where lane_id = :lane_id;

-- tally: what has changed of a lane whose ready jobs have not
update lanes set running = running + :running, chains = chains + :chains,
    completed = completed + :completed, skipped = skipped + :skipped, failed = failed + :failed,
    cancelled = cancelled + :cancelled, completion_us = completion_us + :completion_us
where lane_id = :lane_id;

-- first_open: of each class of lanes, the open one whose office was served longest ago, without some offices
with recursive classes(class_key) as (
    select min(class_key) from lanes where is_open = 1
    union all
    select (select min(lanes.class_key) from lanes where lanes.is_open = 1 and lanes.class_key > classes.class_key)
    from classes where classes.class_key is not null
)
select lane_id, turn from lanes where lane_id in (
    select (
        select first.lane_id from lanes first
        where first.is_open = 1 and first.class_key = classes.class_key
            and first.office_id not in (select key from json_each(:but))
        order by first.turn, first.lane_id limit 1
    ) from classes where classes.class_key is not null
);

-- next_open: of one class of lanes, the open one whose office was served longest ago, without some offices
select lane_id, turn from lanes
where is_open = 1 and class_key = :class_key and office_id not in (select key from json_each(:but))
order by turn, lane_id limit 1;

-- outlook: what a look at the queue has to care about at all: pauses, jobs passed over since long ago, open lanes
select (select count(*) from pauses),
    (select min(passed_over_since) from jobs where stage = 'QUEUED' and passed_over_since is not null),
    (select min(class_key) from lanes where is_open = 1),
    (select count(*) from direct_executions where status = 'WAITING'),
    (select count(*) from outages where held_since is not null);
