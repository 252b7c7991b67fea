-- insert: stores an answer to the wait of a chain, or keeps one for a later wait
insert into signals (chain_id, name, number, job_id, signal_id, answer, payload, sent_by, sent_at)
values (:chain_id, :name, :number, :job_id, :signal_id, :answer, :payload, :sent_by, :sent_at);

-- last: the newest answer of a chain for a name
select {signals.columns} from signals where chain_id = :chain_id and name = :name order by number desc limit 1;

-- sent: the answer of a chain to which its sender gave this id
select {signals.columns} from signals
where chain_id = :chain_id and name = :name and signal_id = :signal_id order by number limit 1;

-- kept: the number of answers of a chain for which nothing has waited
select count(*) from signals where chain_id = :chain_id and job_id is null;

-- of_chain: all answers of a chain, the oldest first
select {signals.columns} from signals where chain_id = :chain_id order by sent_at, name, number;

-- use: gives a kept answer to the job that waits for it
update signals set job_id = :job_id where chain_id = :chain_id and name = :name and number = :number and job_id is null;
