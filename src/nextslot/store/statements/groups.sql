-- insert: stores a new group
insert into job_groups (group_id, office_id, name, mode, on_failure, status, members, ended, succeeded, cancelled, created_at,
    template_id, schedule_id)
values (:group_id, :office_id, :name, :mode, :on_failure, 'QUEUED', :members, 0, 0, 0, :created_at, :template_id,
    :schedule_id);

-- get: one group
select {groups.columns} from job_groups where group_id = :group_id;

-- begin: stores that the first member of a group starts
update job_groups set status = 'RUNNING', started_at = :now where group_id = :group_id and started_at is null;

-- count: stores the counts of a group after a member's chain ended, or continued
update job_groups set ended = :ended, succeeded = :succeeded, cancelled = :cancelled, status = :status,
    finished_at = :finished_at
where group_id = :group_id;

-- request_cancel: stores that the members of a group are to be cancelled, in small transactions, or no longer
update job_groups set cancel_request = :cancel_request where group_id = :group_id;

-- to_cancel: a group whose members are being cancelled
select {groups.columns} from job_groups where cancel_request is not null order by group_id limit 1;

-- set_webhook: stores the webhook that gets a message when a new group has ended
update job_groups set webhook = :webhook where group_id = :group_id;

-- webhook: the webhook of a group, and the message about its end
select webhook, delivery_id from job_groups where group_id = :group_id;

-- told: stores which message reports the end of a group
update job_groups set delivery_id = :delivery_id where group_id = :group_id;
