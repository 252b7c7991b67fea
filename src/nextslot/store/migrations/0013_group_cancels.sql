-- A cancel of a large group that goes on in small transactions: `{"reason": …, "interrupt": …}`; null: none goes on.

alter table job_groups add column cancel_request text;

create index groups_to_cancel on job_groups (group_id) where cancel_request is not null;
