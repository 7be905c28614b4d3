-- mode: load
print(require "string" == string, require "debug" == debug, require "_G" == _G, package.loaded.io == io)  -- expect: true	true	true	true
