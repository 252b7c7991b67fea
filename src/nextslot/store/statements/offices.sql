-- columns: a whole office, in the order that offices.py reads it
office_id, name, status, is_paused, max_concurrent_jobs, role_limits, timeout_seconds, retry_policy, cancel_mode,
on_dependency_failure, webhook, created_at, roles

-- insert: a new office, unless it exists
insert into offices (office_id, name, status, is_paused, max_concurrent_jobs, role_limits, timeout_seconds, retry_policy,
    cancel_mode, on_dependency_failure, webhook, created_at, roles)
values (:office_id, :name, :status, :is_paused, :max_concurrent_jobs, :role_limits, :timeout_seconds, :retry_policy,
    :cancel_mode, :on_dependency_failure, :webhook, :created_at, :roles)
on conflict (office_id) do nothing;

-- update: the settings of an office
update offices set name = :name, status = :status, max_concurrent_jobs = :max_concurrent_jobs, role_limits = :role_limits,
    timeout_seconds = :timeout_seconds, retry_policy = :retry_policy, cancel_mode = :cancel_mode,
    on_dependency_failure = :on_dependency_failure, webhook = :webhook, roles = :roles
where office_id = :office_id;

-- pause: an office's queue stops or goes on
update offices set is_paused = :is_paused where office_id = :office_id and is_paused <> :is_paused;

-- get: one office
select {offices.columns} from offices where office_id = :office_id;
