-- columns: the columns of a table in their order, and the place of each in its primary key, from 1; 0 is none
select name, pk from pragma_table_info(:table_name) order by cid;
