#!/usr/bin/env python3
"""The editor annotations name exactly the members of `flow` and `ctx`.

usage: annotations.py --flow BIN
"""
import argparse
import json
import os
import re
import subprocess
import tempfile

LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "stdlib", "library", "flow.lua")
MODULES = {"params": "param", "data": "data", "safetensors": "safetensors", "text": "text", "tables": "table",
           "json": "json", "fs": "fs", "image": "image", "nn": "nn", "optim": "optim", "metrics": "metrics", "models": "models"}
SCRIPT = r'''
local flow = require "flow"
local members = { %s }
local look = flow.task("look", function(ctx)
  local names, missing = {}, {}
  local function add(t, prefix)
    for key in pairs(t) do names[#names + 1] = prefix .. key end
  end
  add(flow, "")
  for _, module in ipairs { %s } do
    if not flow.table.contains(names, module) then names[#names + 1] = module end
    add(flow[module], module .. ".")
  end
  for _, member in ipairs(members) do
    if not pcall(function() return ctx[member] end) then missing[#missing + 1] = member end
  end
  return { names = names, missing = missing }
end)
return flow.pipeline("look", {}, function() return look() end)
'''


def annotated():
    """Names below flow, and members of ctx."""
    with open(LIBRARY) as file:
        text = file.read()
    names = set(re.findall(r"^function flow\.(\w+)", text, re.M))
    fields = re.search(r"---@class flow\n((?:---@field.*\n)+)", text).group(1)
    names |= set(re.findall(r"---@field (\w+)", fields))
    for local, module in MODULES.items():
        names |= {module + "." + name for name in re.findall(r"^function %s\.(\w+)" % local, text, re.M)}
    context = re.search(r"---@class flow\.context\n((?:---@field.*\n)+)", text).group(1)
    members = re.findall(r"---@field (\w+)", context) + re.findall(r"^function context:(\w+)", text, re.M)
    return names, members


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    flow = os.path.abspath(parser.parse_args().flow)
    names, members = annotated()
    quoted = [", ".join('"%s"' % name for name in group) for group in (members, sorted(MODULES.values()))]
    with tempfile.TemporaryDirectory(prefix="flow-annotations-") as folder:
        with open(os.path.join(folder, "look.lua"), "w") as out:
            out.write(SCRIPT % tuple(quoted))
        done = subprocess.run([flow, "run", "look.lua", "--json"], cwd=folder, capture_output=True, text=True,
                              env=dict(os.environ, FLOW_STATE=os.path.join(folder, "state")), timeout=300)
        subprocess.run([flow, "init", "new"], cwd=folder, check=True, capture_output=True, timeout=60)
        with open(os.path.join(folder, "new", ".luarc.json")) as file:
            (library,) = json.load(file)["workspace.library"]
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    if open(LIBRARY).read() != open(
            os.path.join(library, "flow.lua")).read():
        raise SystemExit("flow init names another library: " + library)
    found = json.loads(done.stdout.splitlines()[-1])["result"]
    there = set(found["names"])
    for what, group in (("not annotated", there - names), ("annotated, but not there", names - there),
                        ("no members of ctx", found["missing"])):
        if group:
            raise SystemExit("%s: %s" % (what, ", ".join(sorted(group))))
    print("%d names and %d members of ctx" % (len(there), len(members)))


main()
