"""A state with runs, and `flow ui` that shows it."""
import http.client
import json
import os
import pwd
import re
import ssl
import subprocess
import sys
import urllib.parse
import urllib.request

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

# Many tasks behind one that runs until the file `gate` exists.
QUEUE = HOLD + r'''
local work = flow.task("work", function(ctx, n) return n end)
return flow.pipeline("queue", { path = flow.param.string {}, n = flow.param.int { default = 10000 } }, function(p)
  local first, items = hold { path = p.path, label = "first" }, {}
  for i = 1, p.n do items[i] = i end
  return { first.stdout, flow.map(work, items) }
end)
'''

# A task that waits for a signal.
ASKS = r'''
local flow = require "flow"
local ask = flow.task("ask", function(ctx) return ctx:wait("approved") end)
return flow.pipeline("asks", {}, function(p) return ask() end)
'''

# A service whose versions differ by a factor.
SERVES = r'''
local flow = require "flow"
local scale = flow.service("scale", { port = 0 }, function(ctx)
  return { predict = function(inputs) return { y = inputs.x * FACTOR } end }
end)
return flow.pipeline("scaled", {}, function() return scale() end)
'''

# 3,600 USD per CPU-hour: a task of one CPU costs 1 USD per second.
PRICES = '[prices]\ncurrency = "USD"\ncpu_hour = 3600\nmemory_gb_hour = 36\n'

# A task holds a GPU until the file `gate` exists.
ON_GPU = r'''
local flow = require "flow"
local train = flow.shell("train", { gpus = 1, args = { "path" }, command = [[touch {path}.started; while [ ! -e {path} ]; do sleep 0.05; done]] })
return flow.pipeline("gpus", { path = flow.param.string {} }, function(p) return train(p.path).stdout end)
'''

# Results that can be looked at.
SHAPES = r'''
local flow = require "flow"
local rows = flow.task("rows", function(ctx) return { { name = "a", n = 1 }, { name = "b", n = 2 } } end)
local numbers = flow.task("numbers", function(ctx) return { w = flow.tensor({ { 1, 2, 3 }, { 4, 5, 9 } }) } end)
local files = flow.shell("files", { args = { "png" }, outputs = { picture = "dot.png", text = "note.txt", page = "page.svg" },
  command = [[printf %s {png} | base64 -d > dot.png; echo "a <b>note</b>" > note.txt; echo '<svg xmlns="http://www.w3.org/2000/svg"/>' > page.svg]] })
return flow.pipeline("shapes", {}, function(p)
  return { rows = rows(), numbers = numbers(), files = files { png = "PNG" } }
end)
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

    def lead(self, *words):
        """Starts `flow head`, which writes the state; returns the object that it prints."""
        self.head = self.start("head", "--listen", "127.0.0.1:0", "--jobs", "2", "--json", *words)
        return json.loads(self.head.stdout.readline())

    def lead_with_gpus(self):
        """As lead(), with a worker that has two GPUs, of which the second one measures only its memory, and with a task that holds the
        first one. Returns where the worker has its metrics."""
        library = os.environ.get("FLOW_TEST_NVML")
        if not library:
            self.skipTest("FLOW_TEST_NVML names no replacement for the driver's library")
        self.env.update(FLOW_NVML_LIB=library, FLOW_FAKE_NVML=self.path("machine"))
        self.env.pop("CUDA_VISIBLE_DEVICES", None)
        self.write("machine", "gpu GPU-a 81920 A\nload 87 1024 51 402130\ngpu GPU-b 81920 B\n")
        self.write("gpus.lua", ON_GPU)
        said = self.lead()
        worker = self.start("worker", "--join", said["address"], "--secret-file", said["secret_file"], "--name", "a", "--dir", self.path("worker"),
                            "--jobs", "1", "--metrics", "127.0.0.1:0")
        metrics = next(found[1] for found in (re.search(r"metrics are at (\S+)", line) for line in worker.stdout) if found)
        self.start("run", "gpus.lua", "--param", "path=" + self.path("gate"), "--name", "held")
        self.until("the task runs", lambda: os.path.exists(self.path("gate.started")))
        return metrics

    def request(self, url, number):
        """A request to the service of SERVES."""
        body = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [number]}]}).encode()
        with urllib.request.urlopen(url + "/v2/models/scale/infer", body, timeout=60) as answer:
            return json.load(answer)["outputs"][0]["data"][0]

    def samples(self, url):
        """What /metrics has: numbers by name with labels."""
        with urllib.request.urlopen(url, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line and not line.startswith("#")}

    def durations(self, url, version):
        """The histogram of the version at /metrics of the service: {limit in seconds: requests}, not cumulative."""
        buckets, before = {}, 0
        for name, number in self.samples(url + "/metrics").items():
            found = re.match(r'flow_service_request_duration_seconds_bucket\{model="scale",version="(.*)",le="(.*)"\}', name)
            if found and found[1] == version:
                buckets[found[2]], before = number - before, number
        return buckets

    def earlier_attempts(self, run):
        """The attempts before the newest one of each task, as `flow trace` has them: (task, attempt) to its slice."""
        self.good("trace", run, "-o", "trace.json", "--force")
        newest = {name: task["attempts"] for name, task in self.tasks(run).items()}
        slices = [event for event in json.loads(self.read("trace.json"))["traceEvents"] if event["ph"] == "X" and event["cat"] == "attempt"]
        return {(each["args"]["task"], each["args"]["attempt"]): each for each in slices if each["args"]["attempt"] < newest[each["args"]["task"]]}

    def user(self):
        return pwd.getpwuid(os.getuid()).pw_name

    def certificate(self):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost",
                        "-days", "2", "-keyout", self.path("key.pem"), "-out", self.path("cert.pem")], check=True, stderr=subprocess.DEVNULL)
        self.write("keys", "first-key-of-the-page\nsecond-key-of-the-page\n")
        return ["--tls-cert", self.path("cert.pem"), "--tls-key", self.path("key.pem"), "--keys", self.path("keys")]

    def act(self, path, body=None, **query):
        """An action of the page: the answer."""
        fields = {"Origin": self.address.rstrip("/"), "X_Flow_Token": self.data("/api/session")["token"]}
        status, _, answer = self.ask(path + ("?" + urllib.parse.urlencode(query) if query else ""), "POST", body=body, **fields)
        self.assertEqual(status, 200, answer)
        return json.loads(answer)

    def ask(self, path, method="GET", cookie=True, host=None, body=None, **fields):
        """(status, headers, body) of one request."""
        if self.address.startswith("https"):
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=60, context=ssl._create_unverified_context())
        else:
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
