-- insert: a new key
insert into api_keys ({keys.new_columns}, digest) values ({keys.new_values}, :digest);

-- get: by its id
select {keys.columns} from api_keys where key_id = :key_id;

-- by_digest: whose key this is
select {keys.columns} from api_keys where digest = :digest
union all
select {keys.columns} from api_keys where old_digest = :digest and old_key_until > :now;

-- rotate: another text opens; the one before does so too for a while
update api_keys set old_digest = digest, old_key_until = :until, digest = :digest where key_id = :key_id;

-- note_use: when it was last used
update api_keys set last_used_at = :now where key_id = :key_id;

-- lasting_admins: how many keys have the highest scope and do not expire
select count(*) from api_keys where scope = 'admin' and expires_at is null;

-- page: the newest first, below an id
select {keys.columns} from api_keys where key_id < :before order by key_id desc limit :limit;

-- admins: how many keys have the highest scope
select count(*) from api_keys where scope = 'admin';

-- delete: from now on it opens nothing
delete from api_keys where key_id = :key_id;
