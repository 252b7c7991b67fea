-- failed: counts one more failure in a row because a resource did not answer
insert into outages (resource, failures, pause_seconds, is_probed) values (:resource, 1, :pause_seconds, 0)
on conflict (resource) do update set failures = outages.failures + 1
returning failures, held_since, pause_seconds;

-- hold: holds a resource until it answers
update outages set held_since = coalesce(held_since, :now), probe_at = :probe_at, pause_seconds = :pause_seconds, is_probed = 0
where resource = :resource and quota_until is null;

-- answered: deletes the outage of a resource that works; the hold of a used-up quota stays until its time
delete from outages where resource = :resource and quota_until is null returning held_since;

-- all: every resource that has failed to answer since it last worked
select resource, failures, held_since, probe_at, pause_seconds, is_probed, quota_until, quota_answers
from outages order by resource;

-- get: the outage of one resource
select resource, failures, held_since, probe_at, pause_seconds, is_probed, quota_until, quota_answers
from outages where resource = :resource;

-- use_up: holds a resource until its quota is renewed
insert into outages (resource, failures, held_since, probe_at, pause_seconds, is_probed, quota_until, quota_answers)
values (:resource, 0, :now, :until, :pause_seconds, 0, :until, 1)
on conflict (resource) do update set
    failures = 0, held_since = coalesce(outages.held_since, excluded.held_since), is_probed = 0,
    probe_at = case when outages.quota_until > excluded.probe_at then outages.quota_until else excluded.probe_at end,
    quota_until = case when outages.quota_until > excluded.quota_until then outages.quota_until
        else excluded.quota_until end,
    quota_answers = outages.quota_answers + 1
returning quota_until;

-- renew: ends the hold of a resource whose quota is renewed
update outages set held_since = null, probe_at = null, quota_until = null where resource = :resource;

-- forget: ends a hold on the order of an operator
delete from outages where resource = :resource;

-- probe: marks a held resource as being probed
update outages set is_probed = 1 where resource = :resource and held_since is not null and is_probed = 0;

-- forget_probes: clears the marks of probes that died with their process
update outages set is_probed = 0 where is_probed = 1;

-- next_probe: when the next probe of any resource is due
select min(probe_at) from outages where probe_at > :now;
