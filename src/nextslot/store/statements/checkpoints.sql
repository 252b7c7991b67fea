-- keep: stores the checkpoint of an unfinished run for the next attempt of its chain, in place of the one before
insert into checkpoints (chain_id, run_id, stored_at, value)
select jobs.chain_id, runs.run_id, :now, :value from runs join jobs on jobs.job_id = runs.job_id
where runs.run_id = :run_id and runs.status is null and jobs.finished_at is null
on conflict (chain_id) do update set run_id = excluded.run_id, stored_at = excluded.stored_at, value = excluded.value;

-- of_chain: the last checkpoint of a chain
select {checkpoints.columns} from checkpoints where chain_id = :chain_id;
