-- insert: a new office, unless it exists
insert into offices ({offices.new_columns}, is_paused) values ({offices.new_values}, 0)
on conflict (office_id) do nothing;

-- update: the settings of an office
update offices set {offices.changes} where office_id = :office_id;

-- pause: an office's queue stops or goes on
update offices set is_paused = :is_paused where office_id = :office_id and is_paused <> :is_paused;

-- get: one office
select {offices.columns} from offices where office_id = :office_id;

-- begin_aging: the jobs of an office get their first step, or their next one at another time; from now on, a position says which of two jobs came first, whatever their priorities
update offices set aging_from = :aging_from, last_position = coalesce(last_position, (
    select coalesce(max(position), 0) from jobs where jobs.office_id = :office_id and stage = 'QUEUED'))
where office_id = :office_id;

-- aging: the first office whose jobs get their first step now, its period, and the place after which they do
select office_id, priority_aging_seconds, aging_from from offices where aging_from is not null order by office_id limit 1;

-- age_from: how far the jobs of an office have got their first step; null: all have
update offices set aging_from = :aging_from where office_id = :office_id;

-- set_last_position: the largest position of an office that ages its jobs
update offices set last_position = :position where office_id = :office_id and last_position < :position;
