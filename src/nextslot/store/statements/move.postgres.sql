-- Differs because each database keeps its catalogue in its own place.

-- columns: the columns of a table in their order, and the place of each in its primary key, from 1; 0 is none
select found.column_name::text, coalesce(keys.ordinal_position, 0)::bigint
from information_schema.columns found
left join information_schema.key_column_usage keys
    on keys.table_schema = found.table_schema and keys.table_name = found.table_name
        and keys.column_name = found.column_name
        -- By its kind: a table that was renamed keeps the name of its key.
        and keys.constraint_name in (
            select primary_key.constraint_name from information_schema.table_constraints primary_key
            where primary_key.table_schema = found.table_schema and primary_key.table_name = found.table_name
                and primary_key.constraint_type = 'PRIMARY KEY')
where found.table_schema = current_schema() and found.table_name = :table_name
    and found.is_generated = 'NEVER'
order by found.ordinal_position;
