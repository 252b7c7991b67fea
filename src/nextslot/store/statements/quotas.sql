-- all: what was granted to each office
select office_id, quotas from office_quotas;

-- put: what is granted to an office from now on
insert into office_quotas (office_id, quotas) values (:office_id, :quotas)
on conflict (office_id) do update set quotas = excluded.quotas;

-- open_chains: how many chains of an office have begun and not ended, by the counters of its lanes
select coalesce(sum(chains - completed - skipped - failed - cancelled), 0) from lanes where office_id = :office_id;

-- lanes: how many lanes of an office have ready jobs
select count(*) from lanes where office_id = :office_id and first_rank is not null;

-- classes: how many classes of lanes an office has
with recursive classes(class_key) as (
    select min(class_key) from lanes where office_id = :office_id
    union all
    select (
        select min(lanes.class_key) from lanes
        where lanes.office_id = :office_id and lanes.class_key > classes.class_key
    ) from classes where classes.class_key is not null
)
select count(class_key) from classes;

-- offices_of: the offices of these runs and direct executions
select runs.run_id, jobs.office_id from runs join jobs on jobs.job_id = runs.job_id
where runs.run_id in (select key from json_each(:run_ids))
union all
select run_id, office_id from direct_executions where run_id in (select key from json_each(:run_ids));
