-- insert: a new group
insert into job_groups (group_id, office_id, name, mode, on_failure, status, members, ended, succeeded, cancelled, created_at,
    template_id, schedule_id)
values (:group_id, :office_id, :name, :mode, :on_failure, 'QUEUED', :members, 0, 0, 0, :created_at, :template_id,
    :schedule_id);

-- get: one group
select {groups.columns} from job_groups where group_id = :group_id;

-- begin: its first member starts
update job_groups set status = 'RUNNING', started_at = :now where group_id = :group_id and started_at is null;

-- count: a member's chain ended, or went on again
update job_groups set ended = :ended, succeeded = :succeeded, cancelled = :cancelled, status = :status,
    finished_at = :finished_at
where group_id = :group_id;

-- request_cancel: its members are cancelled in small transactions from now on, or no longer
update job_groups set cancel_request = :cancel_request where group_id = :group_id;

-- to_cancel: one whose members are being cancelled
select {groups.columns} from job_groups where cancel_request is not null order by group_id limit 1;

-- set_webhook: who is told when a new group has ended
update job_groups set webhook = :webhook where group_id = :group_id;

-- webhook: who is told when it has ended, and by which message it was
select webhook, delivery_id from job_groups where group_id = :group_id;

-- told: the message that tells of its end
update job_groups set delivery_id = :delivery_id where group_id = :group_id;
