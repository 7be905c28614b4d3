prnt("x")  -- expect error: undefined global `prnt` (did you mean `print`?)
