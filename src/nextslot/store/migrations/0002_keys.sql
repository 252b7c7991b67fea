-- Who may use the API, and who changed what through it.

-- A key itself is never stored, only its digest. `scope` is the highest that it has; each includes those before it.
create table api_keys (
    key_id text not null primary key,
    name text not null,
    digest text not null unique,
    scope text not null check (scope in ('read', 'submit', 'operate', 'admin')),
    office_id text references offices,
    created_by text,
    created_at {int} not null,
    -- An admin of one office is none: what an admin does is of the whole scheduler.
    check (scope <> 'admin' or office_id is null)
) {table};

create table audit (
    audit_id text not null primary key,
    timestamp {int} not null,
    actor text not null,
    key_id text,
    action text not null,
    target text not null,
    office_id text,
    details text
) {table};

rule key_first_is_admin before insert on api_keys
    refuse 'the first key is an admin key, and a key cannot be replaced'
    when (new.scope <> 'admin' and not exists (select 1 from api_keys where scope = 'admin')
            and not exists (select 1 from maintenance))
        or exists (select 1 from api_keys where key_id = new.key_id or digest = new.digest);

rule key_fixed before update on api_keys
    refuse 'a key never changes'
    when 1 = 1;

rule key_last_admin before delete on api_keys
    refuse 'the last admin key cannot be deleted'
    when old.scope = 'admin' and not exists (select 1 from api_keys where scope = 'admin' and key_id <> old.key_id)
        and not exists (select 1 from maintenance);

rule audit_inserted_once before insert on audit
    refuse 'the audit log is only appended to'
    when exists (select 1 from audit where audit_id = new.audit_id);

rule audit_fixed before update on audit
    refuse 'the audit log is only appended to'
    when 1 = 1;

rule audit_kept before delete on audit
    refuse 'the audit log is only appended to'
    when not exists (select 1 from maintenance);
