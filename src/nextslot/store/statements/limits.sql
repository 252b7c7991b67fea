-- add: stores a limit that a job needs for the first time
insert into limits (limit_key, capacity, used) values (:limit_key, :capacity, 0) on conflict (limit_key) do nothing;

-- get_many: limits by a JSON object whose keys are the limit keys
select limit_key, capacity, used from limits where limit_key in (select key from json_each(:limit_keys));

-- use: adds units that were taken, or subtracts units that were given back
update limits set used = used + :units where limit_key = :limit_key;

-- resize: stores another capacity
update limits set capacity = :capacity where limit_key = :limit_key and capacity <> :capacity;

-- all: every limit
select limit_key, capacity, used from limits order by limit_key;

-- drop: deletes limits that no lane has
delete from limits where limit_key in (select key from json_each(:limit_keys)) and used = 0;

-- pauses: the pauses across offices
select scope, name from pauses;

-- pause: stores a pause
insert into pauses (scope, name, paused_at) values (:scope, :name, :now) on conflict (scope, name) do nothing;

-- resume: removes a pause
delete from pauses where scope = :scope and name = :name;
