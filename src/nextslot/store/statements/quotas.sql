-- all: the quotas that admins granted to each office
select office_id, quotas from office_quotas;

-- put: stores the quotas of an office
insert into office_quotas (office_id, quotas) values (:office_id, :quotas)
on conflict (office_id) do update set quotas = excluded.quotas;

-- open_chains: the number of unfinished chains of an office, by the counters of its lanes
select coalesce(sum(chains - completed - skipped - failed - cancelled), 0) from lanes where office_id = :office_id;

-- lanes: the number of lanes of an office with ready jobs
select count(*) from lanes where office_id = :office_id and first_rank is not null;

-- classes: the number of classes of lanes of an office
with recursive classes(class_key) as (
    select min(class_key) from lanes where office_id = :office_id
    union all
    select (
        select min(lanes.class_key) from lanes
        where lanes.office_id = :office_id and lanes.class_key > classes.class_key
    ) from classes where classes.class_key is not null
)
select count(class_key) from classes;

-- live_classes: the number of classes of an office's lanes that have jobs which have not ended
select count(distinct class_key) from lanes
where office_id = :office_id
    and (chains > completed + skipped + failed + cancelled or ready > 0 or running > 0);

-- crowded: the offices with more classes of lanes than this
select office_id from (select distinct office_id, class_key from lanes) as found
group by office_id having count(*) > :most;

-- offices_of: the offices of these runs and direct executions
select runs.run_id, jobs.office_id from runs join jobs on jobs.job_id = runs.job_id
where runs.run_id in (select key from json_each(:run_ids))
union all
select run_id, office_id from direct_executions where run_id in (select key from json_each(:run_ids));
