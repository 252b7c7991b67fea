-- What an admin grants an office at most: a JSON object; what it does not name has its default.

create table office_quotas (
    office_id text not null primary key references offices,
    quotas text not null
) {table};
