rawset(table, "insert", print)  -- expect error: `table.insert` can't be set
