-- get: the stored answer to an idempotency key
select digest, answer, created_at from idempotency_keys
where office_id = :office_id and route = :route and idempotency_key = :idempotency_key;

-- put: stores the answer to an idempotency key, in place of one that is older than a day
insert into idempotency_keys (office_id, route, idempotency_key, digest, answer, created_at)
values (:office_id, :route, :idempotency_key, :digest, :answer, :now)
on conflict (office_id, route, idempotency_key)
do update set digest = excluded.digest, answer = excluded.answer, created_at = excluded.created_at;

-- forget: deletes keys that are older than a day, a few at a time
delete from idempotency_keys where (office_id, route, idempotency_key) in (
    select office_id, route, idempotency_key from idempotency_keys where created_at <= :before order by created_at limit :limit
);
