-- mode: load
require "..secret"  -- expect error: a module's name is words
