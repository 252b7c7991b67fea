-- columns: what a key is; never its digest
key_id, name, scope, office_id, created_by, created_at;

-- insert: a new key
insert into api_keys (key_id, name, digest, scope, office_id, created_by, created_at)
values (:key_id, :name, :digest, :scope, :office_id, :created_by, :created_at);

-- get: by its id
select {keys.columns} from api_keys where key_id = :key_id;

-- by_digest: whose key this is
select {keys.columns} from api_keys where digest = :digest;

-- page: the newest first, below an id
select {keys.columns} from api_keys where key_id < :before order by key_id desc limit :limit;

-- admins: how many keys have the highest scope
select count(*) from api_keys where scope = 'admin';

-- delete: from now on it opens nothing
delete from api_keys where key_id = :key_id;
