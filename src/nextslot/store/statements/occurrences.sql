-- insert: stores the result of an occurrence, or of a span of occurrences
insert into occurrences ({occurrences.new_columns}) values ({occurrences.new_values});

-- page: the ledger of a schedule, newest first, from an instant backwards
select {occurrences.columns} from occurrences
where schedule_id = :schedule_id and instant < :before order by instant desc limit :limit;

-- last: the last instant that a schedule's ledger covers
select coalesce(until, instant) from occurrences where schedule_id = :schedule_id order by instant desc limit 1;
