-- append: an entry, in the transaction of what it tells
insert into audit ({audit.new_columns}) values ({audit.new_values});

-- page: the newest first, below an id
select {audit.columns}
from audit
where audit_id < :before
order by audit_id desc
limit :limit;
