-- begin: the rules are suspended until `end`, in this transaction only
insert into maintenance (reason, never) values (:reason, 1);

-- end: the rules hold again
delete from maintenance;

-- meta: a stored fact about the database
select value from meta where name = :name;

-- put_meta: a stored fact about the database
insert into meta (name, value) values (:name, :value) on conflict (name) do update set value = excluded.value;
