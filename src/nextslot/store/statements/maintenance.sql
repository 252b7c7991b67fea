-- begin: suspends the rules until `end`, in this transaction only
insert into maintenance (reason, never) values (:reason, 1);

-- end: puts the rules into force again
delete from maintenance;
