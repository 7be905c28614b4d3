-- mode: load
require "sub/../../secret"  -- expect error: a module's name is words
