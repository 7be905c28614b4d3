return { name = "lib", inner = require "lib.deep.inner" }
