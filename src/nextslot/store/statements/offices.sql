-- insert: stores a new office, unless it exists
insert into offices ({offices.new_columns}, is_paused) values ({offices.new_values}, 0)
on conflict (office_id) do nothing;

-- update: stores the settings of an office
update offices set {offices.changes} where office_id = :office_id;

-- pause: pauses or resumes the queue of an office
update offices set is_paused = :is_paused where office_id = :office_id and is_paused <> :is_paused;

-- get: one office
select {offices.columns} from offices where office_id = :office_id;

-- begin_aging: starts to apply a new aging period to the jobs of an office; positions then show which of two jobs came first
update offices set aging_from = :aging_from, last_position = coalesce(last_position, (
    select coalesce(max(position), 0) from jobs where jobs.office_id = :office_id and stage = 'QUEUED'))
where office_id = :office_id;

-- aging: the first office whose jobs a new aging period still has to reach, the period, and the place reached so far
select office_id, priority_aging_seconds, aging_from from offices where aging_from is not null order by office_id limit 1;

-- age_from: stores the place that a new aging period has reached in an office; null if it has reached all jobs
update offices set aging_from = :aging_from where office_id = :office_id;

-- set_last_position: stores the largest position of an office that ages its jobs
update offices set last_position = :position where office_id = :office_id and last_position < :position;
