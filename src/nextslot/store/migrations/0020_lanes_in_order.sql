-- A start reads the first lanes of an office, not all of them, so the cost does not grow with their number.
--
-- `first_rank` and `first_position` are a lower bound of the place of the first ready job of a lane (the priority that
-- the order goes by, negated, and its position): null if the lane has no ready job, and never behind that job. A start does not change
-- them; whatever puts a ready job further to the front lowers them. `is_open` marks one lane of each class of an office,
-- for all those that the office itself would let start; `turn` is kept of these, and that of every office beside it.

alter table lanes add column first_rank {int};
alter table lanes add column first_position {int};
alter table offices add column turn {int} not null default 0;

update offices set turn = coalesce((select max(lanes.turn) from lanes where lanes.office_id = offices.office_id), 0);

update lanes set
    first_rank = (
        select -first.order_priority from jobs first
        where first.lane_id = lanes.lane_id and first.stage = 'QUEUED' and first.unmet = 0 and first.is_due = 1
            and first.is_turn = 1
        order by first.order_priority desc, first.position, first.created_at, first.job_id limit 1),
    first_position = (
        select first.position from jobs first
        where first.lane_id = lanes.lane_id and first.stage = 'QUEUED' and first.unmet = 0 and first.is_due = 1
            and first.is_turn = 1
        order by first.order_priority desc, first.position, first.created_at, first.job_id limit 1)
where ready > 0;

update lanes set is_open = 0
where is_open = 1 and lane_id not in (select min(lane_id) from lanes where is_open = 1 group by office_id, class_key);

create index lanes_ready on lanes (office_id, first_rank, first_position, lane_id) where first_rank is not null;
create index lanes_ready_class on lanes (office_id, class_key, first_rank, first_position, lane_id)
    where first_rank is not null;
create index lanes_open_class on lanes (office_id, class_key) where is_open = 1;
create index offices_turn on offices (turn);
