-- links: (job, what it retries) of the retries of some chains, by a JSON object whose keys are the chains
select job_id, retry_of from jobs where retry_of is not null and chain_id in (select key from json_each(:chain_ids));

-- queue_counts: the number of queued jobs of each office, waiting ones too; read from the queue's index alone
select office_id, count(*) from jobs where stage = 'QUEUED' group by office_id;

-- ready_counts: the number of ready jobs of each lane, and the oldest; read from their index alone
select lane_id, count(*), min(created_at) from jobs
where stage = 'QUEUED' and unmet = 0 and is_due = 1 and is_turn = 1 group by lane_id;

-- lane_offices: the office and the job type of each lane
select lane_id, office_id, running from lanes;

-- direct_counts: the number of waiting and of running callers of each office
select office_id, sum(case when status = 'WAITING' then 1 else 0 end), sum(case when status = 'RUNNING' then 1 else 0 end)
from (
    select office_id, status from direct_executions where status = 'WAITING'
    union all
    select office_id, status from direct_executions where status = 'RUNNING'
) found group by office_id;

-- active_reservation: the active reservation of an office
select {reservations.columns} from reservations
where office_id = :office_id and status = 'ACTIVE';

-- offices: offices after an id, in the order of their ids
select {offices.columns} from offices where office_id > :after order by office_id limit :limit;

-- artifacts: the artifacts of some runs, by a JSON object whose keys are the runs
select run_id, name, path, size from artifacts where run_id in (select key from json_each(:run_ids)) order by run_id, name;
