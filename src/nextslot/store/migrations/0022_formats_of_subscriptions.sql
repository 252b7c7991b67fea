-- The chat whose form the messages of a subscription have; null: signed JSON for programs.

alter table webhooks add column format text check (format in ('slack', 'discord', 'ntfy'));
