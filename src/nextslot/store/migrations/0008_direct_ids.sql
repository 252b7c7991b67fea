-- A direct execution has a `run_id` of ours, after which its log and artifacts are named, and a `direct_id`, which its
-- caller may choose: this one is unique in its office, and names no file.

drop rule direct_born_waiting on direct_executions;
drop rule direct_written_once on direct_executions;

alter table direct_executions rename column direct_id to run_id;
alter table reservations rename column direct_id to run_id;
alter table direct_executions add column direct_id text;
update direct_executions set direct_id = run_id;
create unique index direct_chosen on direct_executions (office_id, direct_id);

rule direct_born_waiting before insert on direct_executions
    refuse 'a direct execution begins WAITING, and cannot be replaced'
    when (new.status <> 'WAITING' and not exists (select 1 from maintenance))
        or exists (select 1 from direct_executions where run_id = new.run_id or arrival = new.arrival)
        or exists (select 1 from direct_executions where office_id = new.office_id and direct_id = new.direct_id);

rule direct_written_once before update on direct_executions
    refuse 'what a direct execution is never changes, and how it ended is written once'
    when new.run_id <> old.run_id or new.direct_id <> old.direct_id or new.node_id <> old.node_id
        or new.office_id <> old.office_id or new.job_type <> old.job_type
        or new.params <> old.params or new.created_at <> old.created_at or new.arrival <> old.arrival
        or old.finished_at is not null;
