-- insert: an id of another system leads to this one
insert into aliases (kind, alias, id, source) values (:kind, :alias, :id, :source);

-- find: what an id of another system leads to
select id from aliases where kind = :kind and alias = :alias;

-- adopted: which things of a source are stored already
select source, id from aliases where kind = :kind and source in (select key from json_each(:sources));
