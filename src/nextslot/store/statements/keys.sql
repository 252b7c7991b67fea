-- insert: stores a new key
insert into api_keys ({keys.new_columns}, digest) values ({keys.new_values}, :digest);

-- get: one key by its id
select {keys.columns} from api_keys where key_id = :key_id;

-- by_digest: the keys with these digests
select digest, {keys.columns} from api_keys where digest in (select key from json_each(:digests))
union all
select old_digest, {keys.columns} from api_keys
where old_digest in (select key from json_each(:digests)) and old_key_until > :now;

-- rotate: stores another secret; the one before stays valid for a while
update api_keys set old_digest = digest, old_key_until = :until, digest = :digest where key_id = :key_id;

-- note_use: stores when a key was last used
update api_keys set last_used_at = :now where key_id = :key_id;

-- lasting_admins: the number of keys that have the highest scope and do not expire
select count(*) from api_keys where scope = 'admin' and expires_at is null;

-- page: keys below an id, newest first
select {keys.columns} from api_keys where key_id < :before order by key_id desc limit :limit;

-- admins: the number of keys with the highest scope
select count(*) from api_keys where scope = 'admin';

-- delete: deletes a key
delete from api_keys where key_id = :key_id;
