#!/usr/bin/env python3
"""Replicas of a service on the workers of a head: each is a process of its own there, the front beside the head reaches
them through sealed connections, and no request fails while processes die.

usage: remote_replicas.py --flow BIN [TEST...]
"""
import glob
import http.client
import json
import os
import random
import re
import signal
import socket
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
import cluster_place  # noqa: E402
from cluster_place import place  # noqa: E402

SCRIPT = r'''
local flow = require "flow"
local double = flow.service("double", { port = 0, replicas = 4, where = "pool == serve" }, function(ctx)
  return { predict = function(inputs) return { y = inputs.x * 2 } end }
end)
return flow.pipeline("serving", {}, function() double() end)
'''
# A server that is no part of flow; it tells its process.
WRAPPED = r'''
local flow = require "flow"
local server = flow.service("server", { port = 0, replicas = 2, where = "pool == serve", idempotent = true, ready = "/health",
  command = [[exec python3 {script} {port}]], args = { "script" } })
return flow.pipeline("wrapped", { script = flow.param.path {} }, function(p) server(p.script) end)
'''
SERVER = r'''
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = str(os.getpid()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
'''
PATH = "/v2/models/double/infer"
CLIENTS = 4


class Client(threading.Thread):
    """Sends requests until it is told to stop. `failures` is what a user of the service would call a failed request."""

    def __init__(self, port, size=1):
        super().__init__()
        self.port, self.size, self.answered, self.failures = port, size, 0, []
        self.is_over = False

    def run(self):
        try:
            while not self.is_over and not self.failures:
                self.use_connection()
        except (OSError, http.client.HTTPException) as error:
            self.failures.append(repr(error))

    def use_connection(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        connection.connect()
        while connection.sock is not None and not self.is_over:
            data = [self.answered % 1000 + i % 7 for i in range(self.size)]
            connection.request("POST", PATH, json.dumps({"inputs": [
                {"name": "x", "shape": [1, self.size], "datatype": "FP32", "data": data}]}))
            answer = connection.getresponse()
            result = json.loads(answer.read())
            if answer.status != 200 or result["outputs"][0]["data"] != [2 * each for each in data]:
                self.failures.append((answer.status, str(result)[:300]))
            self.answered += 1
        connection.close()


class RemoteReplicas(cluster_place.ClusterPlace):
    def serving(self):
        """Also those of workers."""
        pids = super().serving()
        for record in glob.glob(self.path("worker-*", "scratch", "slots", "*.replica")):
            pids.append(int(os.path.basename(record).split(".")[0]))
        return pids

    def serving_worker(self, name):
        self.worker(name, "--label", "pool=serve")
        self.until_status(name, "up")

    def serve(self, script=SCRIPT, names=("a", "b"), count=4, words=()):
        self.head("--lost-after", "2s")
        for name in names:
            self.serving_worker(name)
        self.write("pipeline.lua", script)
        client = self.start("run", "pipeline.lua", "--json", "--front-lease", "300s", *words)
        self.until_replicas({name: count // len(names) for name in names})
        return client

    def services(self):
        return self.flow("services", "--json").lines()

    def replicas(self):
        """Those that are ready, by their processes."""
        services = self.services()
        replicas = services[0]["replicas"] if len(services) == 1 else []
        return {each["pid"]: each["worker"] for each in replicas if each["pid"] and each["status"] in ("ready", "busy")}

    def until_four_without(self, pid):
        self.until("another replica", lambda: len(self.replicas()) == 4 and pid not in self.replicas())

    def until_replicas(self, wanted):
        def are_there():
            workers = list(self.replicas().values())
            return {name: workers.count(name) for name in workers} == wanted
        self.until("replicas %s" % wanted, are_there)

    def load(self, **how):
        port = self.service_port()
        clients = [Client(port, **how) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        self.addCleanup(self.stop_load, clients)
        self.until_answered(clients)
        return clients

    def service_port(self):
        return int(self.services()[0]["url"].rsplit(":", 1)[1])

    def until_answered(self, clients, more=20):
        wanted = [client.answered + more for client in clients]
        self.until("all clients have answers", lambda: all(client.answered >= each or not client.is_alive()
                                                           for client, each in zip(clients, wanted)))

    def stop_load(self, clients):
        for client in clients:
            client.is_over = True
        for client in clients:
            client.join()

    def end_without_failures(self, run, clients):
        self.until_answered(clients)
        self.stop_load(clients)
        self.assertEqual([client.failures for client in clients], [[]] * CLIENTS)
        self.good("stop", "last")
        self.exits(0, self.end(run))
        self.assertEqual(self.show()["status"], "succeeded")

    def test_each_replica_is_a_process_of_a_worker(self):
        run = self.serve()
        replicas = self.replicas()
        self.assertEqual(len(replicas), 4)
        for pid, worker in replicas.items():
            with open("/proc/%d/stat" % pid) as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
            self.assertEqual(parent, self.workers[worker].pid)
            self.assertFalse(self.listens(pid), "a replica listens for connections")
        self.assertEqual(glob.glob(self.path("worker-*", "fronts", "*", "front.pid")), [])
        fronts = glob.glob(self.path(".flow", "fronts", "*", "front.pid"))
        self.assertEqual(len(fronts), 1)
        with open(self.secret) as file:
            secret = file.read().strip()
        front = int(self.read(fronts[0]))
        for pid in (front, *replicas):
            for name in ("cmdline", "environ"):
                with open("/proc/%d/%s" % (pid, name), "rb") as file:
                    self.assertNotIn(secret.encode(), file.read())
        clients = self.load(size=30000)
        self.until("each replica has a batch", lambda: all(
            each["status"] in ("ready", "busy") for each in self.services()[0]["replicas"]))
        self.end_without_failures(run, clients)
        self.until("the front has ended", lambda: not os.path.exists("/proc/%d" % front))
        self.assertEqual(glob.glob(self.path("worker-*", "scratch", "slots", "*.replica")), [])

    def listens(self, pid):
        """Whether the process listens at a TCP port."""
        with open("/proc/net/tcp") as file:
            listening = {line.split()[9] for line in file.readlines()[1:] if line.split()[3] == "0A"}
        for descriptor in os.listdir("/proc/%d/fd" % pid):
            try:
                target = os.readlink("/proc/%d/fd/%s" % (pid, descriptor))
            except OSError:
                continue
            found = re.match(r"socket:\[(\d+)\]", target)
            if found and found[1] in listening:
                return True
        return False

    def test_a_killed_replica_fails_no_request(self):
        run = self.serve()
        clients = self.load()
        for pid in list(self.replicas())[:2]:
            os.kill(pid, signal.SIGKILL)
            self.until_answered(clients)
            self.until_four_without(pid)
        self.end_without_failures(run, clients)

    def test_a_killed_worker_fails_no_request(self):
        run = self.serve()
        clients = self.load()
        before = self.replicas()
        self.kill(self.workers["a"])
        self.until_answered(clients)
        self.until("its replicas run elsewhere", lambda: list(self.replicas().values()).count("b") == 4)
        self.assertTrue({pid for pid, worker in before.items() if worker == "b"} < set(self.replicas()))
        self.serving_worker("a")
        self.end_without_failures(run, clients)

    def test_a_worker_that_starts_again_has_its_replicas(self):
        # With room only there, the new process of the worker gets the replicas before it counts them as lost.
        run = self.serve(names=("a",))
        before = self.replicas()
        self.kill(self.workers["a"])
        self.serving_worker("a")
        self.until("it has them", lambda: self.replicas() == before)
        self.end_without_failures(run, self.load())

    def test_the_replicas_of_a_worker_that_is_gone_end_when_it_is_lost(self):
        run = self.serve()  # --front-lease is much longer than --lost-after
        orphans = [pid for pid, worker in self.replicas().items() if worker == "a"]
        self.assertEqual(len(orphans), 2)
        self.kill(self.workers["a"])
        self.until("they have ended", lambda: not any(os.path.exists("/proc/%d" % pid) for pid in orphans))
        self.until_replicas({"b": 4})
        self.end_without_failures(run, self.load())

    def test_a_draining_worker_hands_over_its_replicas(self):
        run = self.serve()
        clients = self.load()
        self.workers["a"].terminate()
        self.exits(0, self.end(self.workers["a"]))
        self.until_replicas({"b": 4})
        self.end_without_failures(run, clients)

    def test_a_call_has_the_time_of_a_worker_that_drains(self):
        slow = 'while not flow.fs.exists("%s") do end return' % self.path("answer")
        run = self.serve(SCRIPT.replace("replicas = 4", "replicas = 1, idempotent = false").replace("return { y", slow + " { y"),
                         names=("a",), count=1, words=("--grace", "1ms"))
        client = Client(self.service_port())
        client.start()
        self.addCleanup(client.join)
        self.until("predict runs", lambda: [each["status"] for each in self.services()[0]["replicas"]] == ["busy"])
        self.workers["a"].terminate()
        self.until_status("a", "draining")
        client.is_over = True
        self.open("answer")
        client.join()
        self.assertEqual((client.answered, client.failures), (1, []))
        self.exits(0, self.end(self.workers["a"]))
        self.good("stop", "last")
        self.exits(0, self.end(run))

    def test_the_only_replica_moves_and_requests_wait_for_it(self):
        run = self.serve(SCRIPT.replace("replicas = 4", "replicas = 1"), names=("a",), count=1)
        clients = self.load()
        self.serving_worker("b")
        self.workers["a"].terminate()
        self.exits(0, self.end(self.workers["a"]))
        self.until_replicas({"b": 1})
        self.end_without_failures(run, clients)

    def test_a_killed_head_leaves_the_replicas_to_the_next(self):
        run = self.serve()
        clients = self.load()
        before = self.replicas()
        self.kill(self.head_process)
        self.until_answered(clients, 200)
        self.head("--lost-after", "2s")
        for name in "ab":
            self.until_status(name, "up")
        self.until("it serves", lambda: [each["status"] for each in self.runs()] == ["serving"])
        self.until_answered(clients)
        self.assertEqual(self.replicas(), before)
        # The new head can be reached by new replicas.
        os.kill(list(before)[0], signal.SIGKILL)
        self.until_four_without(list(before)[0])
        self.end_without_failures(run, clients)

    def write_version(self, options=""):
        self.write("pipeline.lua", SCRIPT.replace("replicas = 4", "replicas = 1" + options))

    def deploy(self, options=""):
        """The run of a version of `prod` that has taken over its traffic."""
        self.write_version(options)
        return self.detached("run", "pipeline.lua", "--name", "prod")["run"]

    def percents(self):
        return {service["version"]: service["percent"] or 0 for service in self.services()}

    def restart_head(self, run):
        self.kill(self.head_process)
        self.head("--lost-after", "2s")
        self.until_status("a", "up")
        self.until("the run serves", lambda: self.show(run)["status"] == "serving")

    def engine_ends(self):
        """How often the front has noticed during a canary that its engine has ended."""
        (log,) = glob.glob(self.path(".flow", "fronts", "*", "front.log"))
        return self.read(log).count("the engine has ended during a canary")

    def stop_all(self, clients):
        self.until_answered(clients)
        self.stop_load(clients)
        self.assertEqual([client.failures for client in clients], [[]] * CLIENTS)
        for run in sorted(self.percents(), reverse=True):
            self.good("stop", run)
        self.until("all have ended", lambda: self.services() == [])

    # The leases of these fronts are the default: the next head knows them before it resumes the runs.

    def test_versions_take_over_after_a_head_was_killed(self):
        self.head("--lost-after", "2s")
        self.serving_worker("a")
        run = self.deploy()
        clients = self.load()
        for options in ("", ', canary = { 50, every = "100ms", min_requests = 10 }'):
            self.restart_head(run)
            run = self.deploy(options)
            self.until("it has all traffic", lambda: self.percents() == {run: 100})
        self.assertEqual(self.engine_ends(), 0)
        self.stop_all(clients)

    def test_a_canary_goes_on_after_a_head_was_killed(self):
        self.head("--lost-after", "2s")
        self.serving_worker("a")
        before = self.deploy()
        clients = self.load()
        self.write_version(', canary = { 50, every = "1h" }')
        self.start("run", "pipeline.lua", "--name", "prod", "--json")
        self.until("its first step", lambda: sorted(self.percents().values()) == [50, 50])
        self.kill(self.head_process)
        self.until("the traffic is back", lambda: self.percents()[before] == 100)
        self.head("--lost-after", "2s")
        self.until("its step again", lambda: sorted(self.percents().values()) == [50, 50])
        self.until_answered(clients)
        self.assertEqual(sorted(self.percents().values()), [50, 50])
        self.assertEqual(self.engine_ends(), 1)
        self.stop_all(clients)

    def test_a_stopped_worker_is_a_cut_link(self):
        run = self.serve()
        clients = self.load()
        self.workers["a"].send_signal(signal.SIGSTOP)
        self.until_answered(clients)
        self.workers["a"].send_signal(signal.SIGCONT)
        self.until("it is back", lambda: len(self.replicas()) >= 4)
        self.end_without_failures(run, clients)

    def test_a_killed_front_has_its_replicas_again(self):
        run = self.serve()
        before = self.replicas()
        os.kill(int(self.read(glob.glob(self.path(".flow", "fronts", "*", "front.pid"))[0])), signal.SIGKILL)
        self.until("it is back with its replicas", lambda: self.replicas() == before)
        self.end_without_failures(run, self.load())

    def test_a_stranger_cannot_join_or_disturb_the_front(self):
        run = self.serve()
        clients = self.load()
        gate = int(self.read(glob.glob(self.path(".flow", "fronts", "*", "front.gate"))[0]).split()[0])
        hello = b"\x01flowlink"
        attacks = [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100000, b"\0" * 100000, (1024).to_bytes(4, "little") + b"x" * 1024,
                   (1 << 31).to_bytes(4, "little"), len(hello).to_bytes(4, "little") + hello]
        attacks += [random.Random(seed).randbytes(seed) for seed in range(1, 200, 7)]
        silent = []
        for attack in attacks:
            stranger = socket.create_connection(("127.0.0.1", gate))
            try:
                stranger.sendall(attack)
            except OSError:
                pass  # it was dropped meanwhile
            silent.append(stranger)
        for _ in range(300):
            silent.append(socket.create_connection(("127.0.0.1", gate)))
        self.until_answered(clients)
        # Each is dropped, and none got more than a greeting.
        for stranger in silent:
            stranger.settimeout(place.WAIT_SECONDS_MAX)
            got = b""
            try:
                while block := stranger.recv(65536):
                    got += block
            except ConnectionResetError:
                pass
            self.assertLess(len(got), 1100)
            stranger.close()
        self.assertEqual(len(self.replicas()), 4)
        # A replica whose process dies can still join.
        killed = list(self.replicas())[0]
        os.kill(killed, signal.SIGKILL)
        self.until_four_without(killed)
        self.end_without_failures(run, clients)

    def test_a_replica_without_a_condition_stays_beside_the_head(self):
        self.head()
        self.serving_worker("a")
        self.write("pipeline.lua", SCRIPT.replace(', where = "pool == serve"', ""))
        run = self.start("run", "pipeline.lua", "--json")
        self.until("it serves", lambda: len(self.replicas()) == 4)
        self.assertEqual(set(self.replicas().values()), {"local"})
        self.assertEqual(glob.glob(self.path(".flow", "fronts", "*", "front.gate")), [])
        self.good("stop", "last")
        self.exits(0, self.end(run))

    def test_servers_on_workers_get_their_requests(self):
        self.write("server.py", SERVER)
        self.head("--lost-after", "2s")
        for name in "ab":
            self.serving_worker(name)
        self.write("pipeline.lua", WRAPPED)
        run = self.start("run", "pipeline.lua", "--json", "--param", "script=server.py")
        self.until_replicas({"a": 1, "b": 1})
        port = self.service_port()

        def ask():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
            connection.request("GET", "/any")
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            self.assertEqual(answer.status, 200, body)
            return int(body)
        servers = set()
        self.until("both answer", lambda: servers.add(ask()) or len(servers) == 2)
        killed = servers.pop()
        os.kill(killed, signal.SIGKILL)
        for _ in range(20):
            self.assertNotEqual(ask(), killed)
        self.until("two again", lambda: len(self.replicas()) == 2)
        self.good("stop", "last")
        self.exits(0, self.end(run))


if __name__ == "__main__":
    place.main()
