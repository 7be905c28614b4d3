local function file(name, bytes) flow.fs.write(ctx.dir .. "/" .. name, bytes) return ctx.dir .. "/" .. name end
local function why(f, ...)
  local ok, message = pcall(f, ...)
  message = flow.text.replace(tostring(message), ctx.dir .. "/", "")
  print(ok and "no error" or (message:gsub("^%w+%.lua:%d+: ", "")))
end

local rows = flow.data.csv(file("a.csv", 'name,age,score\nAnn,31,1.5\n"Bo, ""B""",7,\r\n"two\nlines",-2,1e3\n'))
print(#rows, tostring(rows))  -- expect: 3	3 rows of 3 columns
print(table.concat(rows.names, " "), table.concat(rows.types, " "))  -- expect: name age score	string i64 f64
print(rows[2].name, rows[2].age, rows[2].score)  -- expect: Bo, "B"	7	nan
print((rows[3].name:gsub("\n", "|")), rows[3].score)  -- expect: two|lines	1000.0
print(rows:column("age").dtype, rows:column(2):sum())  -- expect: i64	36
print(rows:column("name")[1], rows:column("age", "f32").dtype)  -- expect: Ann	f32
local x = rows:tensor(2, 3, "f64")
print(x.shape[1], x.shape[2], x.dtype, x[1][2])  -- expect: 3	2	f64	1.5
print(rows:tensor({ "score", "age" })[1][2])  -- expect: 31.0
print(rows:tensor("age").shape[2])  -- expect: 1

-- A byte order mark, CRLF, blank lines, no newline at the end; a zero byte is a byte like others.
rows = flow.data.csv(file("b.csv", "\xef\xbb\xbfa;b\r\n\r\n1;x\0y\r\n2;"), { delimiter = ";" })
print(rows.names[1], #rows, #rows[1].b, rows[2].b == "")  -- expect: a	2	3	true
rows = flow.data.csv(file("c.csv", "1,2\n3,4\n"), { header = false })
print(#rows, rows[2][1], rows.names[2])  -- expect: 2	3	2
rows = flow.data.csv(file("d.csv", "id\n007\n"), { columns = { id = "string" } })
print(rows[1].id)  -- expect: 007
rows = flow.data.csv(file("e.csv", "id\n18446744073709551616\n1\n"))
print(rows.types[1], rows[1].id)  -- expect: string	18446744073709551616
rows = flow.data.csv(file("empty.csv", ""))
print(#rows, #rows.names)  -- expect: 0	0
rows = flow.data.csv(file("header.csv", "a,b\n"))
print(#rows, rows.types[1], #rows:column("a"))  -- expect: 0	string	0
rows = flow.data.csv(file("f.csv.gz", "\x1f\x8b\x08\0\0\0\0\0\x02\x03\x4b\xd4\x49\xe2\x32\xd4\x31\xe2\x02\0\x7b\x07\x97\x0a\x08\0\0\0"))
print(#rows, rows[1].a, rows[1].b)  -- expect: 1	1	2

-- Lines that end with CR only, also within quotes; 64-bit numbers that a float cannot represent stay text.
rows = flow.data.csv(file("cr.csv", 'a,b\r1,"x\ry"\r\r3,z\r'))
print(#rows, rows[1].a, (rows[1].b:gsub("\r", "|")), rows[2].b, table.concat(rows.types, " "))  -- expect: 2	1	x|y	z	i64 string
rows = flow.data.csv(file("id.csv", "id,v\n1234567890123456789,1\n,2\n9007199254740993,3\n"))
print(rows.types[1], rows[1].id, rows[3].id, rows[2].id == "")  -- expect: string	1234567890123456789	9007199254740993	true
rows = flow.data.csv(file("id2.csv", "id\n9007199254740993\n1.5\n"))
print(rows.types[1], flow.data.csv(file("id3.csv", "id\n9007199254740992\n\n1.5\n")).types[1])  -- expect: string	f64
print(flow.data.csv(ctx.dir .. "/id2.csv", { columns = { id = "f64" } })[1].id)  -- expect: 9.007199254741e+15
-- A type that cannot represent a value is rejected, unless it is a requested float.
rows = flow.data.csv(file("label.csv", "label,y\n1,300\n,2\n2.5,16777217\n"))
why(rows.column, rows, "label", "i64")  -- expect: rows:column: row 2 of column `label` is empty or NaN, which i64 does not hold: read it as "f64", and convert with x:to(type)
why(rows.column, rows, "y", "u8")  -- expect: rows:column: row 1 of column `y` is 300, which u8 does not hold: take a wider type
why(rows.tensor, rows, 1, 2, "i64")  -- expect: rows:tensor: row 2 of column `label` is empty or NaN, which i64 does not hold: read it as "f64", and convert with x:to(type)
why(rows.tensor, rows)  -- expect: rows:tensor: row 3 of column `y` is 16777217, which f32 does not hold: name the type, "i64", "f64" or "f32", which rounds it
print(rows:tensor(2, 2, "f64")[3][1], rows:tensor(2, 2, "f32")[3][1], rows:tensor(2, 2, "i64")[3][1])  -- expect: 16777217.0	16777216.0	16777217
why(rows.column, rows, "label", "bool")  -- expect: rows:column: row 2 of column `label` is empty or NaN, which bool does not hold: read it as "f64", and convert with x:to(type)
rows = flow.data.csv(file("large.csv", "a\n0.5\n1e300\n"))
why(rows.tensor, rows)  -- expect: rows:tensor: row 2 of column `a` is 1e+300, which f32 does not hold: name the type "f64"
print(rows:tensor(1, 1, "f64")[2][1], rows:tensor(1, 1, "f32")[2][1])  -- expect: 1e+300	inf
-- An integer keeps its digits also next to an empty field or a fraction; a fraction may be rounded.
rows = flow.data.csv(file("gap.csv", "id,x\n1,0.5\n,16777217.0\n-16777217,123456789.25\n"))
why(rows.tensor, rows)  -- expect: rows:tensor: row 3 of column `id` is -16777217, which f32 does not hold: name the type, "f64" or "f32", which rounds it
why(rows.tensor, rows, { "id" })  -- expect: rows:tensor: row 3 of column `id` is -16777217, which f32 does not hold: name the type, "f64" or "f32", which rounds it
print(rows:tensor(1, 1, "f64")[3][1], rows:tensor(1, 1, "f32")[3][1], rows:column("id")[3])  -- expect: -16777217.0	-16777216.0	-16777217.0
print(rows:tensor(2, 2)[2][1], rows:tensor(2, 2)[3][1])  -- expect: 16777216.0	123456792.0
rows = flow.data.csv(file("mixed.csv", "id\n 9007199254740991 \n1.5\n"))
why(rows.tensor, rows)  -- expect: rows:tensor: row 1 of column `id` is 9007199254740991, which f32 does not hold: name the type, "f64" or "f32", which rounds it
rows = flow.data.csv(file("as_f64.csv", "id\n16777217\n"), { columns = { id = "f64" } })
why(rows.tensor, rows)  -- expect: rows:tensor: row 1 of column `id` is 16777217, which f32 does not hold: name the type, "f64" or "f32", which rounds it
rows = flow.data.csv(file("long.csv", "id\n123456789012345678901\n"), { columns = { id = "f64" } })
why(rows.tensor, rows)  -- expect: rows:tensor: row 1 of column `id` is 123456789012345683968, which f32 does not hold: name the type, "f64" or "f32", which rounds it
rows = flow.data.csv(file("even.csv", "id\n16777218\n33554432\n\n1.5\n"))
print(rows:tensor()[1][1], rows:tensor()[2][1])  -- expect: 16777218.0	33554432.0
rows = flow.data.csv(file("half.csv", "a\n1.5\n2\n"))
why(rows.column, rows, 1, "i32")  -- expect: rows:column: row 1 of column `a` is 1.5, which i32 does not hold: read it as "f64", and convert with x:to(type)

local csv = flow.data.csv
why(csv, file("r.csv", "a,b\n1,2\n\n1,2,3\n"))  -- expect: flow.data.csv: r.csv: line 4 has 3 fields, the first row has 2
why(csv, file("q.csv", 'a,b\n1,"2\n3,4\n'))  -- expect: flow.data.csv: q.csv: line 2, column 2: the quote that opens here is never closed
why(csv, file("t.csv", 'a,b\n"1"x,2\n'))  -- expect: flow.data.csv: t.csv: line 2, column 1: after a closing quote comes `,` or the end of the line; a quote inside quotes is written twice
why(csv, file("h.csv", "a,a\n1,2\n"))  -- expect: flow.data.csv: h.csv: the header (line 1) names the column `a` twice; for a file without a header write header = false
local numbers = file("n.csv", "age\n1\nx\n")
why(csv, numbers, { columns = { age = "i64" } })  -- expect: flow.data.csv: n.csv: row 2, column 1 `age` (line 3): `x` is not an integer
why(csv, numbers, { columns = { agee = "i64" } })  -- expect: flow.data.csv: n.csv: column `agee` does not exist (did you mean `age`?)
why(csv, numbers, { columns = { age = "int" } })  -- expect: flow.data.csv: the type of column `age` is "i64", "f64" or "string", not "int"
why(csv, numbers, { columns = { [2] = "i64" } })  -- expect: flow.data.csv: n.csv: column `2` does not exist: the number of columns is 1
why(csv, numbers, { delimeter = ";" })  -- expect: flow.data.csv has no option `delimeter`; did you mean `delimiter`?
why(csv, numbers, { delimiter = ";;" })  -- expect: flow.data.csv: the option `delimiter` is one character, such as ";" or "\t"
why(csv, numbers, { header = 1 })  -- expect: flow.data.csv: the option `header` is true or false
why(csv, numbers, ";")  -- expect: the options of flow.data.csv are a table, not a string
why(csv, 7)  -- expect: flow.data.csv takes a path, not a number
why(csv, "a\0b")  -- expect: flow.data.csv: the path is empty or has a zero byte in it
rows = flow.data.csv(numbers)
why(rows.tensor, rows, "age")  -- expect: rows:tensor: column `age` holds text, which tensors do not hold: rows:column("age") is its list of strings
why(rows.column, rows, "ago")  -- expect: rows:column: column `ago` does not exist (did you mean `age`?)
why(rows.column, rows, 2)  -- expect: rows:column: column 2 does not exist: the number of columns is 1
why(rows.column, rows)  -- expect: rows:column takes a column's number or name, not nil
why(rows.column, {})  -- expect: rows:column is a method of what flow.data.csv returned, not of a table
why(function() return rows[3] end)  -- expect: row 3 is outside 1..2
why(function() return rows.name end)  -- expect: rows have no `name`: they have rows[i], #rows, rows.names, rows.types, rows:tensor(a, b) and rows:column(k)
flow.data.csv(ctx.dir .. "/none.csv")  -- expect error: none.csv
