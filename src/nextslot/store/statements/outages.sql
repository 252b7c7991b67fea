-- failed: one more failure in a row of work that needs a resource, because it did not answer
insert into outages (resource, failures, pause_seconds, is_probed) values (:resource, 1, :pause_seconds, 0)
on conflict (resource) do update set failures = outages.failures + 1
returning failures, held_since, pause_seconds;

-- hold: nothing that needs it starts until it answers
update outages set held_since = coalesce(held_since, :now), probe_at = :probe_at, pause_seconds = :pause_seconds, is_probed = 0
where resource = :resource and quota_until is null;

-- answered: it works again, or still; a quota that is used up stays so until its time
delete from outages where resource = :resource and quota_until is null returning held_since;

-- all: every resource that failed to answer lately
select resource, failures, held_since, probe_at, pause_seconds, is_probed, quota_until, quota_answers
from outages order by resource;

-- get: one of them
select resource, failures, held_since, probe_at, pause_seconds, is_probed, quota_until, quota_answers
from outages where resource = :resource;

-- use_up: nothing that needs it starts until its quota is renewed
insert into outages (resource, failures, held_since, probe_at, pause_seconds, is_probed, quota_until, quota_answers)
values (:resource, 0, :now, :until, :pause_seconds, 0, :until, 1)
on conflict (resource) do update set
    failures = 0, held_since = coalesce(outages.held_since, excluded.held_since), is_probed = 0,
    probe_at = case when outages.quota_until > excluded.probe_at then outages.quota_until else excluded.probe_at end,
    quota_until = case when outages.quota_until > excluded.quota_until then outages.quota_until
        else excluded.quota_until end,
    quota_answers = outages.quota_answers + 1
returning quota_until;

-- renew: its quota is renewed
update outages set held_since = null, probe_at = null, quota_until = null where resource = :resource;

-- forget: an operator has ended the hold
delete from outages where resource = :resource;

-- probe: somebody is trying it
update outages set is_probed = 1 where resource = :resource and held_since is not null and is_probed = 0;

-- forget_probes: whoever was trying has died
update outages set is_probed = 0 where is_probed = 1;

-- next_probe: when the next resource is to be tried
select min(probe_at) from outages where probe_at > :now;
