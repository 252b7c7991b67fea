-- Differs because many runs end in one statement there, which must find them by an index that has nothing but their key:
-- run_id is in the index of a list too, and while the tables are taken for empty that one would look as good.

-- finish: ends a run, once: does nothing if the run has ended
update runs set status = :status, finished_at = :now, exit_code = :exit_code, error = :error,
    failure_kind = :failure_kind, reason = :reason, log_path = coalesce(log_path, :log_path),
    session_id = coalesce(session_id, :session_id), result = :result
where job_id = :job_id and run_id = :run_id and status is null;
