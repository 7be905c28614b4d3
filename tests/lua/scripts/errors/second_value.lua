return 1, "why"  -- expect error: t returned a second value (`why`); a task returns one value
