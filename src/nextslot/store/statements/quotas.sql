-- all: what was granted to each office
select office_id, quotas from office_quotas;

-- put: what is granted to an office from now on
insert into office_quotas (office_id, quotas) values (:office_id, :quotas)
on conflict (office_id) do update set quotas = excluded.quotas;

-- open_chains: how many chains of an office have begun and not ended, by the counters of its lanes
select coalesce(sum(chains - completed - skipped - failed - cancelled), 0) from lanes where office_id = :office_id;
