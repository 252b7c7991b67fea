-- insert: stores the id of another system, and the id of ours that it stands for
insert into aliases (kind, alias, id, source) values (:kind, :alias, :id, :source);

-- find: the id that the id of another system stands for
select id from aliases where kind = :kind and alias = :alias;

-- adopted: the things of a source that are stored already
select source, id from aliases where kind = :kind and source in (select key from json_each(:sources));
