-- all: what was granted to each office
select office_id, quotas from office_quotas;

-- put: what is granted to an office from now on
insert into office_quotas (office_id, quotas) values (:office_id, :quotas)
on conflict (office_id) do update set quotas = excluded.quotas;

-- open_chains: how many chains of an office have begun and not ended, by the counters of its lanes
select coalesce(sum(chains - completed - skipped - failed - cancelled), 0) from lanes where office_id = :office_id;

-- lanes: how many lanes an office has
select count(*) from lanes where office_id = :office_id;

-- offices_of: the offices of these runs and direct executions
select runs.run_id, jobs.office_id from runs join jobs on jobs.job_id = runs.job_id
where runs.run_id in (select key from json_each(:run_ids))
union all
select run_id, office_id from direct_executions where run_id in (select key from json_each(:run_ids));
