-- columns: the columns of a lane that never change
lane_id, office_id, job_type, resources, local, shared, class_key, affinity

-- find: the lane of an office with these limits
select lane_id from lanes where office_id = :office_id and class_key = :class_key and local = :local;

-- add: stores a new lane
insert into lanes (lane_id, office_id, job_type, resources, local, shared, class_key, affinity, ready, is_open, turn,
    running, chains, completed, skipped, failed, cancelled, completion_us)
select coalesce(max(lane_id), 0) + 1, :office_id, :job_type, :resources, :local, :shared, :class_key, cast(:affinity as text), 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0
from lanes
returning lane_id;

-- has_class: whether an office has a lane of a class
select 1 from lanes where office_id = :office_id and class_key = :class_key limit 1;

-- is_idle: whether a lane has no ready and no running jobs, and no kept job began in it
ready = 0 and running = 0 and chains = 0 and completed = 0 and skipped = 0 and failed = 0 and cancelled = 0
    and completion_us = 0

-- idle: lanes that their counters show as unused
select lane_id from lanes where lane_id > :after and {lanes.is_idle} order by lane_id limit :limit;

-- drop_unused: deletes those of some lanes to which nothing refers; keeps the largest id, so that no id is used again
delete from lanes
where lane_id in (select cast(key as bigint) from json_each(:lane_ids)) and {lanes.is_idle}
    and lane_id < (select max(lane_id) from lanes)
    and not exists (select 1 from jobs where jobs.lane_id = lanes.lane_id)
    and not exists (select 1 from direct_executions where direct_executions.lane_id = lanes.lane_id);

-- locals: the limits of each lane within its office, of the lanes after one
select lane_id, local from lanes where lane_id > :after;

-- get: the columns of one lane that never change
select {lanes.columns} from lanes where lane_id = :lane_id;

-- of_affinity: lanes with ready jobs of one affinity, of any office
select lanes.lane_id from lanes join offices on offices.office_id = lanes.office_id
where lanes.affinity = :affinity and lanes.first_rank is not null
order by offices.turn, lanes.office_id, lanes.first_rank, lanes.first_position, lanes.lane_id limit :limit;

-- loaded: the affinity of the last job that started on a resource, and since when others are passed over for it
select resource, affinity, passed_since from affinities;

-- load: stores that a job with another affinity has started, or since when one is passed over
insert into affinities (resource, affinity, passed_since) values (:resource, :affinity, :passed_since)
on conflict (resource) do update set affinity = excluded.affinity, passed_since = excluded.passed_since;

-- counts: the columns of one lane that change
select {lanes.brief} from lanes where lane_id = :lane_id;

-- brief: the columns of a lane that change
ready, is_open, turn, first_rank, first_position

-- of_office: an office's pause, waiting callers, last turn and period of aging, with its first lanes that have ready jobs (or one empty row)
select offices.is_paused,
    (select count(*) from direct_executions where direct_executions.office_id = :office_id and status = 'WAITING'),
    offices.turn, offices.priority_aging_seconds, lanes.lane_id, lanes.ready, lanes.is_open, lanes.turn, lanes.first_rank, lanes.first_position
from offices left join lanes on lanes.office_id = offices.office_id and lanes.first_rank is not null
where offices.office_id = :office_id
order by lanes.first_rank, lanes.first_position, lanes.lane_id limit :limit;

-- classes_of: of each class of an office's lanes with ready jobs, the first lane with its place, and the lane that is open
with recursive classes(class_key) as (
    select min(class_key) from lanes where office_id = :office_id and first_rank is not null
    union all
    select (
        select min(lanes.class_key) from lanes
        where lanes.office_id = :office_id and lanes.first_rank is not null and lanes.class_key > classes.class_key
    ) from classes where classes.class_key is not null
),
fronts(class_key, front_id, open_id) as (
    select classes.class_key, (
        select first.lane_id from lanes first
        where first.office_id = :office_id and first.class_key = classes.class_key and first.first_rank is not null
        order by first.first_rank, first.first_position, first.lane_id limit 1
    ), (
        select opened.lane_id from lanes opened
        where opened.office_id = :office_id and opened.class_key = classes.class_key and opened.is_open = 1
        order by opened.lane_id limit 1
    ) from classes where classes.class_key is not null
)
select fronts.class_key, front.lane_id, front.first_rank, front.first_position, opened.lane_id, opened.ready,
    opened.is_open, opened.turn, opened.first_rank, opened.first_position
from fronts join lanes front on front.lane_id = fronts.front_id left join lanes opened on opened.lane_id = fronts.open_id;

-- of_class: lanes of a class in an office with ready jobs, in order, from a place on
select lane_id, {lanes.brief} from lanes
where office_id = :office_id and class_key = :class_key and first_rank is not null
    and (first_rank, first_position, lane_id) >= (:first_rank, :first_position, :lane_id)
order by first_rank, first_position, lane_id limit :limit;

-- waiting_offices: the offices with ready jobs
with recursive waiting(office_id) as (
    select min(office_id) from lanes where first_rank is not null
    union all
    select (
        select min(lanes.office_id) from lanes
        where lanes.first_rank is not null and lanes.office_id > waiting.office_id
    ) from waiting where waiting.office_id is not null
)
select office_id from waiting where office_id is not null;

-- take_turn: stores the turn of an office that was served
update offices set turn = :turn where office_id = :office_id;

-- place: stores the place of a lane in its office, and whether the lane is open: both are in indexes, and most jobs change neither
update lanes set is_open = :is_open, turn = :turn, first_rank = :first_rank, first_position = :first_position
where lane_id = :lane_id;

-- tally: adds to the counters of a lane
update lanes set ready = ready + :ready, running = running + :running, chains = chains + :chains,
    completed = completed + :completed, skipped = skipped + :skipped, failed = failed + :failed,
    cancelled = cancelled + :cancelled, completion_us = completion_us + :completion_us
where lane_id = :lane_id;

-- first_open: of each class, the open lane whose office was served longest ago, except some offices
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

-- next_open: of one class, the open lane whose office was served longest ago, except some offices
select lane_id, turn from lanes
where is_open = 1 and class_key = :class_key and office_id not in (select key from json_each(:but))
order by turn, lane_id limit 1;

-- outlook: the hints for a dispatch round: pauses, the longest passed-over job, open lanes, callers, outages, the last turn
select (select count(*) from pauses),
    (select min(passed_over_since) from jobs where stage = 'QUEUED' and passed_over_since is not null),
    (select min(class_key) from lanes where is_open = 1),
    (select count(*) from direct_executions where status = 'WAITING'),
    (select count(*) from outages where held_since is not null),
    (select max(turn) from offices);
