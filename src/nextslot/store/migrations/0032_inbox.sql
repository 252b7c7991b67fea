-- Requests for jobs that other programs store in their own transactions, by the function `nextslot_enqueue` of
-- PostgreSQL. The server takes each of them in: the transaction that deletes its row stores its job, with its id.

create table inbox (
    job_id text not null primary key,
    job_type text not null check (length(job_type) between 1 and 1000),
    params text not null,
    options text not null,
    sent_by text not null,
    sent_at {int} not null
) {table};

-- The id is a UUIDv7 with microseconds, so that requests of one transaction are in order. The function runs with the
-- rights of its owner: a program that may call it needs no right on any table. A request that is not even well formed
-- fails here, in the caller's transaction; all other checks are the server's.
postgres: create function nextslot_enqueue(job_type text, params jsonb default '{}', options jsonb default '{}')
    returns text language plpgsql security definer as $enqueue$
declare
    instant bigint := (extract(epoch from clock_timestamp()) * 1000000)::bigint;
    made text := (lpad(to_hex(instant / 1000), 12, '0') || '7' || lpad(to_hex(instant % 1000 * 4096 / 1000), 3, '0')
        || substr(replace(gen_random_uuid()::text, '-', ''), 17, 16))::uuid::text;
begin
    if job_type is null or length(job_type) not between 1 and 1000 then
        raise exception 'job_type must be the name of a job type' using errcode = 'invalid_parameter_value';
    end if;
    if jsonb_typeof(params) is distinct from 'object' or jsonb_typeof(options) is distinct from 'object' then
        raise exception 'params and options must be JSON objects' using errcode = 'invalid_parameter_value';
    end if;
    if length(params::text) + length(options::text) > 1048576 then
        raise exception 'params and options are larger than 1 MiB; store the content elsewhere, and give its place'
            using errcode = 'invalid_parameter_value';
    end if;
    insert into inbox values (made, job_type, params::text, options::text, session_user, instant);
    perform pg_notify('nextslot_' || current_schema()::regnamespace::oid || '_inbox', 'a program');
    return made;
end
$enqueue$;

postgres: revoke all on function nextslot_enqueue(text, jsonb, jsonb) from public;

-- Whatever the search path of the caller is.
postgres: do $alter$ begin execute format('alter function nextslot_enqueue(text, jsonb, jsonb) set search_path = %I, pg_temp', current_schema()); end $alter$;
