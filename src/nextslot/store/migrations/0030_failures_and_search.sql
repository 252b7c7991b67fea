-- Failures by fingerprint, and full text of titles and errors.

-- The beginning of the error of a failed job, and its fingerprint: written by the statement that ends the job.
alter table jobs add column error_line text;
alter table jobs add column fingerprint text;

create index jobs_by_fingerprint on jobs (fingerprint, created_at, job_id) where fingerprint is not null;

rule job_error_fixed before update of error_line, fingerprint on jobs
    refuse 'the error of a job is written once, when it fails'
    when old.fingerprint is not null;

-- A row for each fingerprint, which belongs to one office. Every transaction that ends failed jobs writes it.
create table failures (
    fingerprint text not null primary key,
    office_id text not null,
    job_type text not null,
    failure_kind text not null,
    message text not null,
    last_error text not null,
    first_seen {int} not null,
    last_seen {int} not null,
    total {int} not null check (total > 0),
    is_muted {int} not null default 0 check (is_muted in (0, 1)),
    note text
) {table};

create index failures_by_seen on failures (last_seen, fingerprint);
create index failures_by_office on failures (office_id, last_seen, fingerprint);

-- How many there were in an hour.
create table failure_hours (
    fingerprint text not null,
    hour {int} not null,
    failed {int} not null check (failed > 0),
    primary key (fingerprint, hour)
) {table};

create index failure_hours_old on failure_hours (hour);

-- Full text. It is made of jobs, so it is never moved or exported. A word is a run of letters, digits and all characters
-- that are not ASCII. `id_word` is the id as one word: by it a job's row is found.
sqlite: create virtual table job_text using fts5 (job_id unindexed, id_word, title, error, tokenize = 'ascii');
sqlite: insert into job_text (job_id, id_word, title)
    select job_id, replace(job_id, '-', ''), substr(title, 1, 1000) from jobs where title is not null;

-- There, a word of an error is a lexeme once more with `!` before it. A lexeme has a largest length.
postgres: create function text_words(title text, error text) returns tsvector immutable language sql as
    $words$ select array_to_tsvector(coalesce(array_agg(distinct word), '{}')) from (
        select left(part, 100) as word from regexp_split_to_table(
            lower((coalesce(title, '') || ' ' || coalesce(error, '')) collate "C"),
            '[\u0001-\u002f\u003a-\u0060\u007b-\u007f]+') as part
        union all
        select '!' || left(part, 100) from regexp_split_to_table(
            lower(coalesce(error, '') collate "C"), '[\u0001-\u002f\u003a-\u0060\u007b-\u007f]+') as part
    ) as words where word not in ('', '!') $words$;
postgres: create table job_text (
    job_id text not null primary key,
    title text,
    error text,
    words tsvector generated always as (text_words(title, error)) stored
);
postgres: create index job_text_words on job_text using gin (words);
postgres: insert into job_text (job_id, title) select job_id, substr(title, 1, 1000) from jobs where title is not null;
