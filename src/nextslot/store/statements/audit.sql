-- append: stores an entry, in the transaction of the change that it reports
insert into audit ({audit.new_columns}) values ({audit.new_values});

-- page: entries below an id, newest first
select {audit.columns}
from audit
where audit_id < :before
order by audit_id desc
limit :limit;
