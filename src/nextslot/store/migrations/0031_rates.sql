-- Rates: how many runs may start, and how many tokens they may use, in a minute; and limits of keys that jobs carry.

create table rates (
    limit_key text not null,
    unit text not null check (unit in ('starts', 'tokens')),
    -- When the bucket is full again, if nothing more is taken from it. What is missing now follows from this.
    full_at {int} not null,
    -- When the timer lets work start that the bucket holds back; null: it holds nothing back.
    wake_at {int},
    primary key (limit_key, unit)
) {table};

alter table jobs add column limit_keys text;
alter table job_templates add column limit_keys text;
