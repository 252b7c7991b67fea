-- insert: a new subscription
insert into webhooks ({webhooks.new_columns}, secret) values ({webhooks.new_values}, :secret);

-- get: one subscription
select {webhooks.columns} from webhooks where webhook_id = :webhook_id;

-- page: the newest first, below an id
select {webhooks.columns} from webhooks
where webhook_id < :before and (:office_id = '' or office_id = :office_id)
order by webhook_id desc
limit :limit;

-- count: how many subscriptions there are
select count(*) from webhooks;

-- enabled: the subscriptions that are told of events, the oldest first
select {webhooks.columns} from webhooks where is_enabled = 1 order by webhook_id;

-- update: where a subscription goes, and whether it does
update webhooks set {webhooks.changes} where webhook_id = :webhook_id;

-- rotate: another secret; the one before it signs too, for a while
update webhooks set old_secret = secret, old_secret_until = :until, secret = :secret where webhook_id = :webhook_id;

-- delete: a subscription ends
delete from webhooks where webhook_id = :webhook_id;

-- secrets: what subscriptions sign with
select webhook_id, secret, old_secret, old_secret_until from webhooks;

-- server_secret: what the webhooks of jobs and offices are signed with
select secret from webhook_secrets where name = 'server';

-- keep_server_secret: the one that was generated
insert into webhook_secrets (name, secret) values ('server', :secret);

-- offices: the webhooks of offices
select office_id, webhook from offices where webhook is not null;
