-- Keys expire, rotate, and may be limited to addresses and job types; offices may be limited to job types.

alter table api_keys add column expires_at {int};
-- Stored at most once a minute.
alter table api_keys add column last_used_at {int};
-- JSON lists; null: every address, every type.
alter table api_keys add column allowed_addresses text;
alter table api_keys add column job_types text;
-- After a rotation the text before opens too, until then.
alter table api_keys add column old_digest text;
alter table api_keys add column old_key_until {int};
create unique index keys_old_digest on api_keys (old_digest) where old_digest is not null;

drop rule key_fixed on api_keys;
rule key_fixed before update of key_id, name, digest, scope, office_id, created_by, created_at, expires_at, allowed_addresses, job_types on api_keys
    refuse 'a key never changes, except for its rotation and its last use'
    when new.key_id <> old.key_id or new.name <> old.name or new.scope <> old.scope
        or (new.digest <> old.digest and new.old_digest is distinct from old.digest)
        or new.office_id is distinct from old.office_id or new.created_by is distinct from old.created_by
        or new.created_at <> old.created_at or new.expires_at is distinct from old.expires_at
        or new.allowed_addresses is distinct from old.allowed_addresses
        or new.job_types is distinct from old.job_types;
