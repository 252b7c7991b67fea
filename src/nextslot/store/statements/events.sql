-- append: stores one event; the database numbers it
insert into events (type, office_id, job_id, run_id, details, timestamp)
values (:type, :office_id, :job_id, :run_id, :details, :timestamp);

-- after: events from a number on, oldest first
select {events.columns} from events where seq > :after order by seq limit :limit;

-- last: the newest number
select coalesce(max(seq), 0) from events;
