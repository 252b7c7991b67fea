-- When the work of a placed run began, which is later than the start of the run: it may have waited in the queue of its
-- engine. Durations count from it. Null: a node ran the work, or the work has not begun.
alter table runs add column began_at {int};
