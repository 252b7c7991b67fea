-- Differs because a file has no clock, and the database's is the one that all nodes share.

-- now: the time of the database's clock, since the clocks of the nodes may differ
(extract(epoch from clock_timestamp()) * 1000000)::bigint
