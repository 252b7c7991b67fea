-- Nodes read the files of runs from each other (services/files_of_nodes.py): each stores where it answers, and all share
-- a secret by which they know each other. Neither is exported.

alter table nodes add column address text;

alter table cluster add column files_secret text;
