-- The ids that adopted work had before: an id in another system leads to ours. `source` is where it was read, so that a
-- second adoption finds what the first one stored.

create table aliases (
    kind text not null check (kind in ('job', 'run', 'group', 'story', 'card')),
    alias text not null,
    id text not null,
    source text not null,
    primary key (kind, alias)
) {table};

create unique index aliases_source on aliases (kind, source);
