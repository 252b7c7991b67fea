-- The name of a prerequisite among the inputs of a job: its key in the request; null: its id (spec 5.27).
alter table dependencies add column name text;
