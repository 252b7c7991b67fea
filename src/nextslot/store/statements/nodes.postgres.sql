-- now: leases go by the database's clock, since those of the nodes may differ
(extract(epoch from clock_timestamp()) * 1000000)::bigint
