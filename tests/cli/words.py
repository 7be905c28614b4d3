"""A pipeline for exports: shell tasks, a map over files, a folder, parameters of several types, and a task that only waits. A line with
`bad` makes it fail. tests/cli/exports.py reads its exports itself, tests/interop/exchange.py with the programs of others."""
import json

from http_double import HttpDouble

PIPELINE = r"""
local flow = require "flow"
local split = flow.shell("split", { args = { "text" }, outputs = { parts = "part.*" }, env = { LC_ALL = "C" },
  command = [[split -l 1 {text} part.]] })
local count = flow.task("count", function(ctx, path)
  local file = io.open(path)
  local text = file:read("a")
  file:close()
  if text:find("bad") then error("a bad line") end
  return #text
end)
local join = flow.shell("join", { args = { "parts" }, outputs = { all = "all.txt", more = "more" },
  command = [[cat {parts} > {outputs.all}; mkdir more; echo 1 > more/one.txt]] })
local note = flow.shell("note", { cache = true, command = [[echo done]] })
return flow.pipeline("words", {
  text = flow.param.path { help = "a text" }, times = flow.param.int { default = 2 }, names = flow.param.list { of = "string", default = { "a" } },
}, function(p)
  local parts = split(p.text).parts
  local joined = join(parts)
  note {}:after(joined)
  return { counts = flow.map(count, parts), all = joined.all, more = joined.more, times = p.times }
end)
"""


class EventRecorder(HttpDouble):
    """A server for events. `seen`: (path, Authorization, event) of each. `answers`: statuses of the next ones, before 201."""

    def __init__(self):
        self.seen, self.answers = [], []
        super().__init__()

    def answer(self, handler, body):
        self.seen.append((handler.path, handler.headers.get("Authorization"), json.loads(body)))
        return self.answers.pop(0) if self.answers else 201, b""
