-- get_many: the buckets of some limits, by a JSON object whose keys are the limit keys
select limit_key, unit, full_at, wake_at from rates where limit_key in (select key from json_each(:limit_keys));

-- put: stores a bucket, after something was taken from it or it has held work back
insert into rates (limit_key, unit, full_at, wake_at) values (:limit_key, :unit, :full_at, :wake_at)
on conflict (limit_key, unit) do update set full_at = excluded.full_at, wake_at = excluded.wake_at;

-- all: every bucket
select limit_key, unit, full_at, wake_at from rates order by limit_key, unit;

-- next_wake: when the first bucket that holds work back lets work start again
select min(wake_at) from rates where wake_at is not null;

-- due: the limits whose buckets now let work start again
select distinct limit_key from rates where wake_at <= :now;

-- woken: clears the alarms that are due: dispatch considers the held work now
update rates set wake_at = null where wake_at <= :now;
