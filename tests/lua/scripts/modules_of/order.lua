-- mode: load
print(require "both")  -- expect: the file	both.lua
print(require "lib.both")  -- expect: the file	lib/both.lua
