-- columns: a whole delivery, in the order that deliveries.py reads it
delivery_id, url, event, seq, office_id, job_id, signers, is_own, body, headers, status, tries, next_attempt_at, reason,
created_at, finished_at

-- insert: a message to be sent now
insert into deliveries (delivery_id, url, origin, event, seq, office_id, job_id, webhook_id, signers, is_own, body,
    headers, status, tries, next_attempt_at, created_at)
values (:delivery_id, :url, :origin, :event, :seq, :office_id, :job_id, :webhook_id, :signers, :is_own, :body, :headers,
    'PENDING', 0, :now, :now);

-- get: one delivery
select {deliveries.columns} from deliveries where delivery_id = :delivery_id;

-- attempts: what was tried for a delivery, in order
select {attempts.columns} from delivery_attempts
where delivery_id = :delivery_id order by number;

-- origins: who is to be sent something, and when first
select origin, min(next_attempt_at) from deliveries where status = 'PENDING' group by origin;

-- due: what is to be sent to one origin by now, the first due first
select {deliveries.columns} from deliveries
where status = 'PENDING' and origin = :origin and next_attempt_at <= :now
order by next_attempt_at, delivery_id limit :limit;

-- next_due: when the next is to be sent to one origin after now
select min(next_attempt_at) from deliveries where status = 'PENDING' and origin = :origin and next_attempt_at > :now;

-- settle: what follows an attempt; one that has ended, or begun a new round, in the meantime is not touched
update deliveries set status = :status, tries = :tries, next_attempt_at = :next_attempt_at, reason = :reason,
    finished_at = :finished_at
where delivery_id = :delivery_id and status = 'PENDING' and tries = :tries - 1;

-- add_attempt: one more try, and what came of it
insert into delivery_attempts (delivery_id, number, attempted_at, duration_seconds, status_code, error, answer,
    retry_after_seconds)
select :delivery_id, 1 + count(*), :attempted_at, :duration_seconds, cast(:status_code as bigint), :error, :answer,
    cast(:retry_after_seconds as double precision)
from delivery_attempts where delivery_id = :delivery_id;

-- give_up: what is to be sent for a subscription, and for nobody else, will not be
update deliveries set status = 'FAILED', next_attempt_at = null, finished_at = :now, reason = :reason
where webhook_id = :webhook_id and signers = :signers and status = 'PENDING';

-- send_again: an ended delivery begins a new round of attempts
update deliveries set status = 'PENDING', tries = 0, next_attempt_at = :now, finished_at = null, reason = null
where delivery_id = :delivery_id and status <> 'PENDING';

-- mark_job: whether a job's own webhook was delivered, from all its deliveries
update jobs set webhook_status = (
    select case
        when sum(case when status = 'PENDING' then 1 else 0 end) > 0 then 'pending'
        when sum(case when status = 'FAILED' then 1 else 0 end) > 0 then 'failed'
        else 'delivered' end
    from deliveries where deliveries.job_id = jobs.job_id and is_own = 1)
where job_id = :job_id;

-- mark_pending: something is to be sent to a job's own webhook
update jobs set webhook_status = 'pending' where job_id = :job_id;

-- page: the newest first, below an id
select {deliveries.columns} from deliveries
where delivery_id < :before and (:status = '' or status = :status) order by delivery_id desc limit :limit;

-- page_of_event: those of one event
select {deliveries.columns} from deliveries
where event = :event and delivery_id < :before and (:status = '' or status = :status)
order by delivery_id desc limit :limit;

-- page_of_status: those that are to be sent, or have failed
select {deliveries.columns} from deliveries
where status = :status and status <> 'DELIVERED' and delivery_id < :before order by delivery_id desc limit :limit;

-- page_of_job: those that tell of one job
select {deliveries.columns} from deliveries
where job_id = :job_id and delivery_id < :before and (:event = '' or event = :event) and (:status = '' or status = :status)
    and (:webhook_id = '' or webhook_id = :webhook_id)
order by delivery_id desc limit :limit;

-- page_of_webhook: those of one subscription
select {deliveries.columns} from deliveries
where webhook_id = :webhook_id and delivery_id < :before and (:event = '' or event = :event)
    and (:status = '' or status = :status)
order by delivery_id desc limit :limit;
