"""A state with runs, and `flow ui` that shows it."""
import http.client
import json
import os
import sys
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "state"))
from place import HOLD, Place  # noqa: E402

# One task fails, a map logs and reports metrics, a command writes to both streams.
SCRIPT = r'''
local flow = require "flow"
local load = flow.task("load", function(ctx) ctx:log("reading") return { 1, 2, 3, 4 } end)
local work = flow.task("work", { retries = 1 }, function(ctx, n)
  for i = 1, 5 do
    ctx:log("step " .. i .. " of part " .. n)
    ctx:metric("loss", n / i, i)
  end
  if n == 3 then error("part 3 is broken") end
  return n * 2
end)
local sum = flow.task("sum", function(ctx, list) return #list end)
local tool = flow.shell("tool", { command = [[echo "<b>bold</b>"; echo warned >&2]] })
return flow.pipeline("mixed", { lr = flow.param.number { default = 0.5 } }, function(p)
  return { total = sum(flow.map(work, load())), tool = tool().stdout }
end)
'''

# Many tasks.
BIG = r'''
local flow = require "flow"
local work = flow.task("work", function(ctx, n) return n end)
return flow.pipeline("big", { n = flow.param.int { default = 2000 } }, function(p)
  local items = {}
  for i = 1, p.n do items[i] = i end
  return #items > 0 and flow.map(work, items) or {}
end)
'''

# A task that runs until the file `gate` exists.
WAITS = HOLD + r'''
return flow.pipeline("waits", { path = flow.param.string {} }, function(p)
  return hold { path = p.path, label = "first" }.stdout
end)
'''

# A task that waits for a signal.
ASKS = r'''
local flow = require "flow"
local ask = flow.task("ask", function(ctx) return ctx:wait("approved") end)
return flow.pipeline("asks", {}, function(p) return ask() end)
'''

# A task fails with bytes that are not text.
BYTES = r'''
local flow = require "flow"
local bad = flow.task("bad", function(ctx) error("broken \xff here") end)
return flow.pipeline("bytes", {}, function(p) return bad() end)
'''

# Each task has a name of its own.
NAMES = r'''
local flow = require "flow"
local first = flow.task("first", function(ctx) return 1 end)
local steps = {}
for i = 1, 400 do steps[i] = flow.task("step" .. i, function(ctx, n) return n end) end
return flow.pipeline("names", {}, function(p)
  local last, one = {}, first()
  for i, step in ipairs(steps) do last[i] = step(one) end
  return last
end)
'''


class PagePlace(Place):
    def open_page(self, *words):
        """Starts `flow ui`, and sets its link and address."""
        process = self.start("ui", "--json", *words)
        said = json.loads(process.stdout.readline())
        self.link, self.address = said["url"], said["address"]
        self.assertEqual(said["state"], self.state)
        parts = urllib.parse.urlsplit(self.link)
        self.host, self.port = parts.hostname, parts.port
        self.cookie = None
        return process

    def ask(self, path, method="GET", cookie=True, host=None, body=None, **fields):
        """(status, headers, body) of one request."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        headers = {"Host": host or "%s:%d" % (self.host, self.port), **{name.replace("_", "-"): value for name, value in fields.items()}}
        if cookie and self.cookie:
            headers["Cookie"] = self.cookie
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, answer.headers, body

    def log_in(self):
        parts = urllib.parse.urlsplit(self.link)
        status, headers, _ = self.ask("/?" + parts.query)
        self.assertEqual((status, headers["Location"]), (303, "/"))
        self.cookie = headers["Set-Cookie"].split(";")[0]
        return headers["Set-Cookie"]

    def data(self, path, **fields):
        query = "?" + urllib.parse.urlencode(fields) if fields else ""
        status, _, body = self.ask(path + query)
        self.assertEqual(status, 200, body)
        return json.loads(body)
