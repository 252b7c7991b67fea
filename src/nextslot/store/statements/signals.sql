-- insert: an answer to the wait of a chain, or one that is kept for a wait to come
insert into signals (chain_id, name, number, job_id, signal_id, answer, payload, sent_by, sent_at)
values (:chain_id, :name, :number, :job_id, :signal_id, :answer, :payload, :sent_by, :sent_at);

-- last: the newest answer of a name in a chain
select {signals.columns} from signals where chain_id = :chain_id and name = :name order by number desc limit 1;

-- sent: the answer to a wait of a chain that its sender gave this id
select {signals.columns} from signals
where chain_id = :chain_id and name = :name and signal_id = :signal_id order by number limit 1;

-- kept: how many answers of a chain nothing has waited for
select count(*) from signals where chain_id = :chain_id and job_id is null;

-- of_chain: all answers of a chain, the oldest first
select {signals.columns} from signals where chain_id = :chain_id order by sent_at, name, number;

-- use: a kept answer gets the job that has begun to wait for it
update signals set job_id = :job_id where chain_id = :chain_id and name = :name and number = :number and job_id is null;
