-- insert: what became of an occurrence, or of a span of them
insert into occurrences (schedule_id, instant, until, count, outcome, reason, detail, job_id)
values (:schedule_id, :instant, :until, :count, :outcome, :reason, :detail, :job_id);

-- page: a schedule's ledger, the newest first, from an instant downwards
select schedule_id, instant, until, count, outcome, reason, detail, job_id from occurrences
where schedule_id = :schedule_id and instant < :before order by instant desc limit :limit;

-- last: the last instant that a schedule's ledger covers
select coalesce(until, instant) from occurrences where schedule_id = :schedule_id order by instant desc limit 1;
