-- begin: the rules are suspended until `end`, in this transaction only
insert into maintenance (reason, never) values (:reason, 1);

-- end: the rules hold again
delete from maintenance;
