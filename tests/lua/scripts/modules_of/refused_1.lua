-- mode: load
require "/etc/hosts"  -- expect error: a module's name is words with dots between them
