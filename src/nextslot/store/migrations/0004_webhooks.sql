-- Webhooks: who is told of what, and every message with its attempts.

-- Secrets are kept as they are, because they sign; nothing but the sender reads them.
create table webhooks (
    webhook_id text not null primary key,
    url text not null,
    events text not null,
    office_id text references offices,
    secret text not null,
    old_secret text,
    old_secret_until {int},
    is_enabled {int} not null check (is_enabled in (0, 1)),
    disabled_reason text,
    created_by text,
    created_at {int} not null,
    check ((old_secret is null) = (old_secret_until is null)),
    check ((is_enabled = 0) = (disabled_reason is not null))
) {table};

-- What signs the webhooks of jobs and offices, unless the configuration says.
create table webhook_secrets (
    name text not null primary key check (name = 'server'),
    secret text not null
) {table};

-- `origin` is who is at the other end (scheme, host, port); `tries` counts the attempts of this round.
create table deliveries (
    delivery_id text not null primary key,
    url text not null,
    origin text not null,
    event text not null,
    seq {int} not null,
    office_id text,
    job_id text references jobs,
    webhook_id text,
    signers text not null,
    is_own {int} not null check (is_own in (0, 1)),
    body text not null,
    headers text,
    status text not null check (status in ('PENDING', 'DELIVERED', 'FAILED')),
    tries {int} not null check (tries >= 0),
    next_attempt_at {int},
    reason text,
    created_at {int} not null,
    finished_at {int},
    check ((next_attempt_at is not null) = (status = 'PENDING')),
    check ((finished_at is null) = (status = 'PENDING')),
    check (status <> 'FAILED' or reason is not null)
) {table};

-- What is to be sent, by whom it is sent to: who is dead or slow is not in the way of the others.
create index deliveries_due on deliveries (origin, next_attempt_at, delivery_id) where status = 'PENDING';
create index deliveries_unfinished on deliveries (status, delivery_id) where status <> 'DELIVERED';
create index deliveries_job on deliveries (job_id, delivery_id) where job_id is not null;
create index deliveries_webhook on deliveries (webhook_id, delivery_id) where webhook_id is not null;
create index deliveries_event on deliveries (event, delivery_id);

create table delivery_attempts (
    delivery_id text not null references deliveries,
    number {int} not null check (number > 0),
    attempted_at {int} not null,
    duration_seconds {real} not null,
    status_code {int},
    error text,
    answer text,
    retry_after_seconds {real},
    primary key (delivery_id, number),
    check (status_code is not null or error is not null)
) {table};

rule webhook_inserted_once before insert on webhooks
    refuse 'a subscription cannot be replaced'
    when exists (select 1 from webhooks where webhook_id = new.webhook_id);

rule webhook_identity before update of webhook_id, created_by, created_at on webhooks
    refuse 'what a subscription is never changes'
    when new.webhook_id <> old.webhook_id or new.created_at <> old.created_at
        or new.created_by is distinct from old.created_by;

rule webhook_secret_inserted_once before insert on webhook_secrets
    refuse 'the secret of the server is generated once'
    when exists (select 1 from webhook_secrets where name = new.name);

rule delivery_born_pending before insert on deliveries
    refuse 'a delivery begins PENDING, and cannot be replaced'
    when ((new.status <> 'PENDING' or new.tries <> 0) and not exists (select 1 from maintenance))
        or exists (select 1 from deliveries where delivery_id = new.delivery_id);

rule delivery_fixed before update of delivery_id, url, origin, event, seq, office_id, job_id, webhook_id, signers, is_own, body, headers, created_at on deliveries
    refuse 'what is delivered never changes'
    when new.delivery_id <> old.delivery_id or new.url <> old.url or new.origin <> old.origin or new.event <> old.event
        or new.seq <> old.seq or new.office_id is distinct from old.office_id or new.job_id is distinct from old.job_id
        or new.webhook_id is distinct from old.webhook_id or new.signers <> old.signers or new.is_own <> old.is_own
        or new.body <> old.body or new.headers is distinct from old.headers or new.created_at <> old.created_at;

rule delivery_ends_once before update of status on deliveries
    refuse 'a delivery that has ended is sent again from the beginning, or stays as it ended'
    when old.status <> 'PENDING' and new.status <> old.status and not (new.status = 'PENDING' and new.tries = 0);

rule delivery_kept before delete on deliveries
    refuse 'a delivery is never deleted outside maintenance'
    when not exists (select 1 from maintenance);

rule attempt_inserted_once before insert on delivery_attempts
    refuse 'attempts are only added'
    when exists (select 1 from delivery_attempts where delivery_id = new.delivery_id and number = new.number);

rule attempt_fixed before update on delivery_attempts
    refuse 'attempts are only added'
    when 1 = 1;

rule attempt_kept before delete on delivery_attempts
    refuse 'attempts are only added'
    when not exists (select 1 from maintenance);
