-- insert: stores a new subscription
insert into webhooks ({webhooks.new_columns}, secret) values ({webhooks.new_values}, :secret);

-- get: one subscription
select {webhooks.columns} from webhooks where webhook_id = :webhook_id;

-- page: subscriptions below an id, newest first
select {webhooks.columns} from webhooks
where webhook_id < :before and (:office_id = '' or office_id = :office_id)
order by webhook_id desc
limit :limit;

-- count: the number of subscriptions of an office, or of those for all offices
select count(*) from webhooks where coalesce(office_id, '') = :office_id;

-- enabled: the subscriptions that get events, oldest first
select {webhooks.columns} from webhooks where is_enabled = 1 order by webhook_id;

-- update: stores the URL of a subscription and its other settings, such as whether it is enabled
update webhooks set {webhooks.changes} where webhook_id = :webhook_id;

-- rotate: stores another secret; the one before signs too for a while
update webhooks set old_secret = secret, old_secret_until = :until, secret = :secret where webhook_id = :webhook_id;

-- delete: deletes a subscription
delete from webhooks where webhook_id = :webhook_id;

-- secrets: the secrets of subscriptions
select webhook_id, secret, old_secret, old_secret_until from webhooks;

-- server_secret: the secret that signs the webhooks of jobs and offices
select secret from webhook_secrets where name = 'server';

-- keep_server_secret: stores the generated secret of the server
insert into webhook_secrets (name, secret) values ('server', :secret);

-- offices: the webhooks of offices
select office_id, webhook from offices where webhook is not null;
