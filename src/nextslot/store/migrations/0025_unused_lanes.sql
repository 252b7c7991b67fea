-- Lanes that nothing refers to are deleted. Without these indexes each would cost a look at every job.

create index jobs_of_lane on jobs (lane_id);
create index direct_of_lane on direct_executions (lane_id);
