-- A run that has not ended may get another session: that of the attempt before, or one that its program has named.

drop rule run_written_once on runs;

rule run_written_once before update on runs
    refuse 'the outcome of a run is written once (INV-002)'
    when (old.finished_at is not null
            and (new.status is distinct from old.status or new.finished_at is distinct from old.finished_at
                or new.exit_code is distinct from old.exit_code or new.error is distinct from old.error
                or new.failure_kind is distinct from old.failure_kind or new.reason is distinct from old.reason
                or new.result is distinct from old.result
                or (old.session_id is not null and new.session_id is distinct from old.session_id)))
        or (old.log_path is not null and new.log_path is distinct from old.log_path)
        or (old.session_id is not null and new.session_id is null);
