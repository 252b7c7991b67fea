-- failed: one more failure in a row of work that needs a resource, because it did not answer
insert into outages (resource, failures, pause_seconds, is_probed) values (:resource, 1, :pause_seconds, 0)
on conflict (resource) do update set failures = outages.failures + 1
returning failures, held_since, pause_seconds;

-- hold: nothing that needs it starts until it answers
update outages set held_since = coalesce(held_since, :now), probe_at = :probe_at, pause_seconds = :pause_seconds, is_probed = 0
where resource = :resource;

-- answered: it works again, or still
delete from outages where resource = :resource returning held_since;

-- all: every resource that failed to answer lately
select resource, failures, held_since, probe_at, pause_seconds, is_probed from outages order by resource;

-- probe: somebody is trying it
update outages set is_probed = 1 where resource = :resource and held_since is not null and is_probed = 0;

-- forget_probes: whoever was trying has died
update outages set is_probed = 0 where is_probed = 1;

-- next_probe: when the next resource is to be tried
select min(probe_at) from outages where probe_at > :now;
