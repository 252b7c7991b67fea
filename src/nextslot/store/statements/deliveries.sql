-- columns: all columns of a delivery, in the order in which deliveries.py reads them
delivery_id, url, event, seq, office_id, job_id, signers, is_own, body, headers, status, tries, next_attempt_at, reason,
created_at, finished_at

-- insert: stores a message to send now
insert into deliveries (delivery_id, url, origin, event, seq, office_id, job_id, webhook_id, signers, is_own, body,
    headers, status, tries, next_attempt_at, created_at)
values (:delivery_id, :url, :origin, :event, :seq, :office_id, :job_id, :webhook_id, :signers, :is_own, :body, :headers,
    'PENDING', 0, :now, :now);

-- get: one delivery
select {deliveries.columns} from deliveries where delivery_id = :delivery_id;

-- attempts: the attempts of a delivery, in order
select {attempts.columns} from delivery_attempts
where delivery_id = :delivery_id order by number;

-- origins: the origins with pending deliveries, each with the time of its first attempt
select origin, min(next_attempt_at) from deliveries where status = 'PENDING' group by origin;

-- due: deliveries to one origin that are due, the earliest first
select {deliveries.columns} from deliveries
where status = 'PENDING' and origin = :origin and next_attempt_at <= :now
order by next_attempt_at, delivery_id limit :limit;

-- next_due: when the next delivery to one origin is due after now
select min(next_attempt_at) from deliveries where status = 'PENDING' and origin = :origin and next_attempt_at > :now;

-- settle: stores the result of an attempt, unless the delivery has ended or begun a new round in the meantime
update deliveries set status = :status, tries = :tries, next_attempt_at = :next_attempt_at, reason = :reason,
    finished_at = :finished_at
where delivery_id = :delivery_id and status = 'PENDING' and tries = :tries - 1;

-- add_attempt: stores an attempt and its result
insert into delivery_attempts (delivery_id, number, attempted_at, duration_seconds, status_code, error, answer,
    retry_after_seconds)
select :delivery_id, 1 + count(*), :attempted_at, :duration_seconds, cast(:status_code as bigint), :error, :answer,
    cast(:retry_after_seconds as double precision)
from delivery_attempts where delivery_id = :delivery_id;

-- give_up: fails the pending deliveries that only one subscription would get
update deliveries set status = 'FAILED', next_attempt_at = null, finished_at = :now, reason = :reason
where webhook_id = :webhook_id and signers = :signers and status = 'PENDING';

-- send_again: starts a new round of attempts of an ended delivery
update deliveries set status = 'PENDING', tries = 0, next_attempt_at = :now, finished_at = null, reason = null
where delivery_id = :delivery_id and status <> 'PENDING';

-- mark_job: stores whether a job's own webhook was delivered, computed from all its deliveries
update jobs set webhook_status = (
    select case
        when sum(case when status = 'PENDING' then 1 else 0 end) > 0 then 'pending'
        when sum(case when status = 'FAILED' then 1 else 0 end) > 0 then 'failed'
        else 'delivered' end
    from deliveries where deliveries.job_id = jobs.job_id and is_own = 1)
where job_id = :job_id;

-- mark_pending: stores that a message to a job's own webhook is pending
update jobs set webhook_status = 'pending' where job_id = :job_id;

-- page: deliveries below an id, newest first
select {deliveries.columns} from deliveries
where delivery_id < :before and (:status = '' or status = :status) order by delivery_id desc limit :limit;

-- page_of_event: the deliveries of one event
select {deliveries.columns} from deliveries
where event = :event and delivery_id < :before and (:status = '' or status = :status)
order by delivery_id desc limit :limit;

-- page_of_status: pending or failed deliveries
select {deliveries.columns} from deliveries
where status = :status and status <> 'DELIVERED' and delivery_id < :before order by delivery_id desc limit :limit;

-- page_of_job: the deliveries that report about one job
select {deliveries.columns} from deliveries
where job_id = :job_id and delivery_id < :before and (:event = '' or event = :event) and (:status = '' or status = :status)
    and (:webhook_id = '' or webhook_id = :webhook_id)
order by delivery_id desc limit :limit;

-- page_of_webhook: the deliveries of one subscription
select {deliveries.columns} from deliveries
where webhook_id = :webhook_id and delivery_id < :before and (:event = '' or event = :event)
    and (:status = '' or status = :status)
order by delivery_id desc limit :limit;
