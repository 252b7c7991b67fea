-- A resource whose quota is used up is held until the quota is renewed (spec 6.13).

create table held_resources (
    resource text not null primary key,
    failures {int} not null check (failures >= 0),
    held_since {int},
    probe_at {int},
    pause_seconds {real} not null,
    is_probed {int} not null check (is_probed in (0, 1)),
    -- When the quota is renewed, while that is why it is held; then nothing probes it before.
    quota_until {int} check (quota_until is null or quota_until = probe_at),
    -- How often in a row it has answered that its quota is used up.
    quota_answers {int} not null default 0 check (quota_answers >= 0),
    check ((held_since is null) = (probe_at is null)),
    check (failures + quota_answers > 0)
) {table};

insert into held_resources (resource, failures, held_since, probe_at, pause_seconds, is_probed)
select resource, failures, held_since, probe_at, pause_seconds, is_probed from outages;

drop table outages;
alter table held_resources rename to outages;
