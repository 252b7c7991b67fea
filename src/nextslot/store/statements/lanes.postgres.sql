-- Differs because PostgreSQL would sort all lanes of the office before the limit.

-- of_office: as on SQLite, with the first lanes in a table of their own
select offices.is_paused,
    (select count(*) from direct_executions where direct_executions.office_id = :office_id and status = 'WAITING'),
    offices.turn, offices.priority_aging_seconds, found.lane_id, found.ready, found.is_open, found.lane_turn, found.first_rank, found.first_position
from offices left join (
    select lane_id, ready, is_open, turn as lane_turn, first_rank, first_position from lanes
    where office_id = :office_id and first_rank is not null
    order by first_rank, first_position, lane_id limit :limit
) found on 1 = 1
where offices.office_id = :office_id;
