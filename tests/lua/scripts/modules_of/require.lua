-- mode: load
local plain = require "plain"  -- expect: plain loads	plain	plain.lua
print(require "plain" == plain, plain.next())  -- expect: true	1
local lib = require "lib"
print(lib.name, lib.inner, require("lib.deep.inner"))  -- expect: lib	inner	inner
print(require "silent")  -- expect: true	silent.lua
print(package.loaded.plain == plain, package.loaded.flow == require "flow")  -- expect: true	true
