-- Affinity: jobs that need the same of a resource, such as a model, go together.

alter table jobs add column affinity text;
alter table job_templates add column affinity text;
alter table lanes add column affinity text;
create index lanes_affinity on lanes (affinity) where affinity is not null and first_rank is not null;

-- What a resource that goes by affinity has loaded: that of the last job that started there.
create table affinities (
    resource text not null primary key,
    affinity text not null,
    -- Since when the next job in order is passed over for those that need what is loaded; null: none was.
    passed_since {int}
) {table};
