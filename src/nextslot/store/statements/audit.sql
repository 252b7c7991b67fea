-- append: an entry, in the transaction of what it tells
insert into audit (audit_id, timestamp, actor, key_id, action, target, office_id, details)
values (:audit_id, :timestamp, :actor, :key_id, :action, :target, :office_id, :details);

-- page: the newest first, below an id
select audit_id, timestamp, actor, key_id, action, target, office_id, details
from audit
where audit_id < :before
order by audit_id desc
limit :limit;
