#!/usr/bin/env python3
"""Services whose server is a program that a command starts.

usage: wrapped_services.py --flow BIN [TEST...]
"""
import http.client
import os
import re
import signal
import socket
import sys
import threading
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, Place, main  # noqa: E402

# The server reads what to do from files of its folder: `health` has the status of /health, which is
# 503 without it. It writes its starts and the questions that it gets to files.
SERVER = r'''
import http.server, os, signal, sys, time
folder, port, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def note(file, text):
    with open(os.path.join(folder, file), "a") as out:
        out.write(text + "\n")

def content(file):
    try:
        with open(os.path.join(folder, file)) as found:
            return found.read().strip()
    except FileNotFoundError:
        return ""

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def events(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for i in range(3):
            while not os.path.exists(os.path.join(folder, "event.%d" % i)): time.sleep(0.01)
            self.wfile.write(b"data: %d\n\n" % i)
        self.close_connection = True

    def do_GET(self):
        if self.path == "/events":
            return self.events()
        if self.path == "/variables":
            code, body = 200, " ".join(sorted(os.environ)).encode()
        elif self.path == "/pid":
            code, body = 200, str(os.getpid()).encode()
        elif self.path in ("/health", "/live"):
            note("asked" + self.path.replace("/", "."), "")
            code, body = int(content(self.path[1:]) or content("health") or 503), b""
        else:
            code, body = 200, ("%s %s %s" % (name, os.environ.get("MODE"), self.path)).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

def end(*_):
    note("ended", str(os.getpid()))
    os._exit(0)

signal.signal(signal.SIGTERM, end)
for i in range(30):
    print("line", i, flush=True)
note("started", "%d %d" % (os.getpid(), port))
exec(content("before"))
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
'''
SCRIPT = r'''
local flow = require "flow"
local count = flow.task("name", function() return "small" end)
local web = flow.service("web", { OPTIONS
  command = [[exec python3 server.py {folder} {port} {model}]], args = { "folder", "model" } })
return flow.pipeline("wrapped", {}, function() return { web = web("FOLDER", count()) } end)
'''


HOLDER = HOLD + r'''
return flow.pipeline("holder", { gate = flow.param.string {} }, function(p) return hold(p.gate, "one").stdout end)
'''


class Client(threading.Thread):
    """Asks for the process of the server until it is told to end."""

    def __init__(self, url):
        super().__init__()
        self.url = url
        self.answers, self.failures = [], []
        self.is_over = False

    def run(self):
        while not self.is_over:
            try:
                with urllib.request.urlopen(self.url + "/pid", timeout=60) as answer:
                    self.answers.append(answer.read().decode())
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(str(error))

    def end(self):
        self.is_over = True
        self.join()


class WrappedServices(Place):
    def script(self, options):
        self.write("server.py", SERVER)
        text = SCRIPT.replace("OPTIONS", options).replace("FOLDER", self.folder)
        self.write("pipeline.lua", text.replace("server.py", self.path("server.py")))

    def starts(self):
        """(pid, port) of each start of the server."""
        if not os.path.exists(self.path("started")):
            return []
        return [tuple(int(word) for word in line.split()) for line in self.read("started").splitlines()]

    def is_asked(self, times, path="health"):
        return os.path.exists(self.path("asked." + path)) and len(self.read("asked." + path).splitlines()) >= times

    def serve(self, *words):
        run = self.start("run", ".", "--serve-for", "600s", *words)
        self.until("it serves", lambda: any(each.get("url") for each in self.runs()))
        return run

    def get(self, path):
        with urllib.request.urlopen(self.show()["url"] + path, timeout=60) as answer:
            return answer.read().decode()

    def is_alive(self, pid):
        return os.path.exists("/proc/%d" % pid)

    def test_a_server_serves_once_it_is_ready_and_ends_with_its_run(self):
        self.script('ready = "/health", env = { MODE = "fast" },')
        run = self.start("run", ".", "--serve-for", "600s")
        self.until("it is asked", lambda: self.is_asked(3))
        self.assertFalse(any(each.get("url") for each in self.runs()))
        self.write("health", "200")
        self.until("it serves", lambda: any(each.get("url") for each in self.runs()))
        self.assertEqual(self.get("/v1/models"), "small fast /v1/models")
        (pid, port), = self.starts()
        run.send_signal(signal.SIGINT)
        self.exits(0, self.end(run))
        self.assertEqual(self.read("ended"), "%d\n" % pid)
        self.assertEqual(self.show()["status"], "succeeded")
        self.assertIn("line 29", self.good("logs", "last", "web").out)
        self.assertEqual(os.listdir(self.path(".flow", "scratch", self.runs()[0]["run"])), [])

    def test_a_server_that_is_not_ready_in_time_fails_with_its_last_answer_and_its_log(self):
        self.script('ready = "/health", start_timeout = "1500ms",')
        done = self.exits(1, self.flow("run", "."), "the server of `web` was not ready within 1.5s, its `start_timeout` "
                          "(GET /health: status 503): raise it")
        self.assertIn("line 29", done.out + done.err)
        self.assertNotIn("line 9\n", done.out + done.err)
        (pid, _), = self.starts()
        self.assertFalse(self.is_alive(pid))

    def test_a_server_that_never_listens_fails_in_time_too(self):
        self.script('ready = "/health", start_timeout = "500ms",')
        self.write("before", "import time; time.sleep(600)")
        self.exits(1, self.flow("run", "."), "(GET /health: nothing listens at 127.0.0.1:")

    def test_a_server_that_ends_by_itself_fails_with_its_code_and_last_lines(self):
        self.script('ready = "/health",')
        self.write("before", "print('no such model', file=sys.stderr); sys.exit(3)")
        self.exits(1, self.flow("run", "."), "`web` ended with exit code 3", "no such model")
        self.write("before", "sys.exit(0)")
        self.exits(1, self.flow("run", "."), "the server of `web` ended by itself, with exit code 0")
        self.write("before", "os.kill(os.getpid(), 9)")
        self.exits(1, self.flow("run", "."), "`web` was killed by signal 9")

    def test_a_server_whose_health_is_bad_is_ended_and_starts_again(self):
        self.script('ready = "/health", health = "/live", retries = { max = 3, backoff = "10ms" },')
        self.write("health", "200")
        run = self.serve()
        self.assertEqual(len(self.starts()), 1)
        self.write("live", "500")
        self.until("it has started again", lambda: len(self.starts()) >= 2)
        os.remove(self.path("live"))
        self.assertTrue(self.is_asked(3, "live"))
        self.assertFalse(self.is_alive(self.starts()[0][0]))
        self.until("it serves again", lambda: any(each.get("url") for each in self.runs()))
        log = self.good("why", "last", "web").out + self.good("show", "last").out
        self.assertIn("did not answer 3 times in a row with a status of 200 to 299", log)
        run.send_signal(signal.SIGINT)
        self.exits(0, self.end(run))

    def take_port(self, number):
        """Listens at the port of a start of the server."""
        self.until("start %d" % number, lambda: len(self.starts()) == number)
        listener = socket.create_server(("127.0.0.1", self.starts()[number - 1][1]))
        self.addCleanup(listener.close)
        self.open("taken.%d" % number)

    WAIT_FOR_TAKEN = """
import time
number = len(content("started").splitlines())
while number <= %d and not os.path.exists(os.path.join(folder, "taken.%%d" %% number)): time.sleep(0.01)
"""

    def test_a_server_whose_port_is_taken_meanwhile_starts_at_another_one(self):
        self.script('ready = "/health",')
        self.write("health", "200")
        self.write("before", self.WAIT_FOR_TAKEN % 1)
        run = self.start("run", ".", "--serve-for", "600s")
        self.take_port(1)
        self.until("it serves", lambda: any(each.get("url") for each in self.runs()))
        first, second = self.starts()
        self.assertNotEqual(first[1], second[1])
        self.assertEqual(self.get("/x"), "small None /x")
        self.assertIn("the port of the server was taken meanwhile", self.good("logs", "last", "web").out)
        run.send_signal(signal.SIGINT)
        self.exits(0, self.end(run))

    def test_a_third_taken_port_ends_the_attempt_through_no_fault_of_the_task(self):
        self.script('ready = "/health",')
        self.write("health", "200")
        self.write("before", self.WAIT_FOR_TAKEN % 3)
        run = self.start("run", ".", "--serve-for", "600s")
        for number in (1, 2, 3):
            self.take_port(number)
        self.until("it serves", lambda: any(each.get("url") for each in self.runs()))
        self.assertEqual(len(self.starts()), 4)
        self.assertIn("a process of user %d listens at 127.0.0.1:%d, the port of the server of `web`, which has to listen there itself"
                      % (os.geteuid(), self.starts()[2][1]), self.good("logs", "last", "web").out + self.good("why", "last", "web").out)
        self.ends(run)

    def test_a_server_that_ignores_the_end_is_killed_within_the_grace(self):
        self.script('ready = "/health",')
        self.write("health", "200")
        self.write("before", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
        run = self.serve("--grace", "1s")
        (pid, _), = self.starts()
        run.send_signal(signal.SIGINT)
        self.exits(0, self.end(run))
        self.assertFalse(self.is_alive(pid))

    def test_a_run_that_is_interrupted_while_the_server_starts_ends_it(self):
        self.script('ready = "/health",')
        run = self.start("run", ".")
        self.until("it is asked", lambda: self.is_asked(1))
        run.send_signal(signal.SIGINT)
        self.end(run)
        (pid, _), = self.starts()
        self.assertEqual(self.read("ended"), "%d\n" % pid)

    def test_a_server_goes_on_when_flow_is_killed_and_the_run_is_resumed(self):
        self.script('ready = "/health",')
        self.write("health", "200")
        run = self.serve()
        url, (started,) = self.show()["url"], self.starts()
        self.kill(run)
        self.assertTrue(self.is_alive(started[0]))
        run = self.start("resume", "last", "--serve-for", "600s")
        self.until("it serves", lambda: "url" in self.show())
        self.assertEqual((self.show()["url"], self.starts()), (url, [started]))
        self.assertEqual(self.get("/x"), "small None /x")
        run.send_signal(signal.SIGINT)
        self.exits(0, self.end(run))
        self.assertEqual(self.read("ended"), "%d\n" % started[0])

    def ends(self, run):
        run.send_signal(signal.SIGINT)
        self.exits(0, self.end(run))

    def test_a_stream_arrives_event_by_event_and_is_finished_at_the_end(self):
        self.script('ready = "/health",')
        self.write("health", "200")
        run = self.serve("--grace", "60s")
        for i in range(3):
            self.open("event.%d" % i)
        with urllib.request.urlopen(self.show()["url"] + "/events", timeout=60) as events:
            self.assertEqual(events.read().count(b"data"), 3)
        for i in range(3):
            os.remove(os.path.join(self.folder, "event.%d" % i))
        for name in ("first_byte", "event"):  # the server wrote the events one by one
            self.until("the times of the response are counted", lambda: re.search(
                r"^flow_service_%s_seconds_count\{.*\} 1$" % name, self.get("/flow/metrics"), re.M))
        with urllib.request.urlopen(self.show()["url"] + "/events", timeout=60) as events:
            self.assertEqual(events.headers["Content-Type"], "text/event-stream")
            for i in range(2):
                self.open("event.%d" % i)
                self.assertEqual([events.readline(), events.readline()], [b"data: %d\n" % i, b"\n"])
            self.assertEqual(self.get("/flow/ready"), '{"ready":true}')
            run.send_signal(signal.SIGINT)
            self.until("it stops", lambda: self.show()["status"] == "stopping" or not self.accepts())
            self.open("event.2")
            self.assertEqual(events.read(), b"data: 2\n\n")
        self.exits(0, self.end(run))

    def test_the_keys_are_not_for_the_server(self):
        self.script('ready = "/health", keys = flow.env("API_KEYS"),')
        self.write("health", "200")
        run = self.start("run", ".", "--serve-for", "600s", API_KEYS="first-key-4711", OTHER="1")
        self.until("it serves", lambda: any(each.get("url") for each in self.runs()))
        request = urllib.request.Request(self.show()["url"] + "/variables", headers={"Authorization": "Bearer first-key-4711"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            names = answer.read().decode().split()
        self.assertIn("OTHER", names)
        self.assertNotIn("API_KEYS", names)
        self.ends(run)

    def accepts(self):
        address = self.show()["url"].rsplit("/", 1)[1].split(":")
        try:
            socket.create_connection((address[0], int(address[1])), timeout=60).close()
        except ConnectionRefusedError:
            return False
        return True

    def load(self):
        """Asks for the server's process in a loop."""
        client = Client(self.show()["url"])
        self.addCleanup(client.end)
        client.start()
        return client

    def test_no_get_fails_when_one_of_two_servers_is_killed(self):
        self.script('ready = "/health", replicas = 2,')
        self.write("health", "200")
        run = self.serve()
        client = self.load()
        self.until("both answer", lambda: len(set(client.answers)) == 2)
        os.kill(self.starts()[0][0], signal.SIGKILL)
        self.until("three have answered", lambda: len(set(client.answers)) == 3)
        client.end()
        self.assertEqual(client.failures, [])
        self.assertEqual(set(client.answers), {str(pid) for pid, _ in self.starts()})
        self.ends(run)

    def test_a_new_version_takes_over_without_a_failure(self):
        self.write("health", "200")
        self.write("holder.lua", HOLDER)
        self.start("run", "holder.lua", "--param", "gate=" + self.path("gate"))
        self.until_holds("one")
        self.script('ready = "/health",')
        first = self.start("run", ".", "--name", "prod")
        self.until("it serves", lambda: any(each.get("url") for each in self.runs()))
        client = Client(next(each["url"] for each in self.runs() if each.get("url")))
        self.addCleanup(client.end)
        client.start()
        self.until("it answers", lambda: len(client.answers) >= 20)
        second = self.start("run", ".", "--name", "prod")
        self.exits(0, self.end(first))
        self.until("the new version answers", lambda: client.answers[-1] == str(self.starts()[-1][0]))
        client.end()
        self.assertEqual(client.failures, [])
        self.assertEqual(len(self.starts()), 2)
        self.ends(second)
        self.open("gate")

    def test_a_call_without_an_argument_is_refused(self):
        self.script('ready = "/health",')
        self.exits(0, self.flow("plan", "."))
        self.write("pipeline.lua", self.read("pipeline.lua").replace(', count()', ''))
        self.exits(2, self.flow("plan", "."), "`web` is called without its argument `model`")


if __name__ == "__main__":
    main()
