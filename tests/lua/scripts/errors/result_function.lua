return { layers = { 1, { forward = print } } }  -- expect error: t returned a function at result.layers[2].forward
