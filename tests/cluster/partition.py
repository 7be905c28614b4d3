#!/usr/bin/env python3
"""Network partitions between machines."""
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

import cluster_place
import blobs
import machines
from cluster_place import size_of


# An unauthenticated process: prints each address in its arguments where it could connect, and sends
# garbage there.
KNOCK = r"""
import socket, sys
for place in sys.argv[1:]:
    host, port = place.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=0.5) as link:
            link.sendall(bytes(64))
            print(place)
    except OSError:
        pass
"""

READ = r"""
local flow = require "flow"
local read = flow.task("read", function(ctx, path)
  local file = io.open(path, "rb")
  local size = #file:read("a")
  file:close()
  return size
end)
return flow.pipeline("read", { path = flow.param.path {} }, function(p) return read(p.path) end)
"""
# Prints all packets on a device of this machine, once a line arrives on its standard input.
LISTEN = r"""
import select, socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 28)
wire.bind((sys.argv[1], 0))
print("hears", flush=True)
while True:
    ready, _, _ = select.select([wire, sys.stdin], [], [])
    if wire in ready:
        sys.stdout.buffer.write(wire.recv(1 << 17))
    elif sys.stdin in ready:
        break
"""
SINGS = r"""
local flow = require "flow"
local sing = flow.task("sing", { ranks = 2 }, function(ctx)
  local short = ctx.comm:broadcast(string.rep("a sparrow sings ", 10))
  local long = ctx.comm:broadcast(string.rep("the canary sings", 30000))
  return #short + #long
end)
return flow.pipeline("sings", function() return sing() end)
"""

# Each worker has the resources for one rank of each gang.
MEETS = r"""
local flow = require "flow"
local lua = flow.task("lua", { ranks = 2, resources = { of_lua = 1 }, retries = { infra = 0 } }, function(ctx)
  return ctx.comm:all_reduce(1)
end)
local shell = flow.shell("shell", { ranks = 2, resources = { of_shell = 1 }, retries = { infra = 0 }, command = "sleep 1000" })
return flow.pipeline("meets", function() lua() shell() end)
"""


class Partition(machines.MachinesPlace):
    def attempts(self, done):
        run = self.last_json(self.exits(0, done))
        return sorted(task["attempts"] for task in run["tasks"])

    def test_a_short_partition_costs_nothing(self):
        self.cluster(["a", "b"])
        client = self.run_holds()
        self.machines.cut("a")
        time.sleep(3)
        self.machines.heal("a")
        self.until_status("a", "up")
        self.open("gate")
        self.ends_with_one_attempt_each(client)

    def test_results_from_during_a_partition_are_accepted_when_it_heals(self):
        self.cluster(["a", "b"])
        client = self.run_holds()
        self.machines.cut("a")
        self.open("gate")
        time.sleep(3)
        self.machines.heal("a")
        self.ends_with_one_attempt_each(client)

    def test_a_long_partition_moves_the_work_and_late_results_are_rejected(self):
        self.cluster(["a", "b"])
        client = self.run_holds()
        self.machines.cut("a")
        self.until_status("a", "lost")
        self.worker("c")
        self.until("two run again", lambda: len(self.read("gate.started").split()) == 6)
        self.machines.heal("a")
        self.until_status("a", "up")
        self.open("gate")
        self.assertEqual(self.attempts(self.end(client)), [1, 1, 2, 2])
        self.assertEqual(len(self.read("gate.started").split()), 6)

    def test_a_disconnected_worker_is_lost_within_ten_seconds(self):
        seconds = self.lost_after(lambda worker: self.machines.cut("a"))
        self.assertLess(seconds, 15)

    def test_a_disconnected_worker_is_lost_as_soon_during_a_transfer(self):
        self.write("read.lua", READ)
        with open(self.path("big.in"), "wb") as file:
            file.write(bytes(40 << 20))
        self.cluster(["a"])
        if not self.machines.slow("a", "80mbit", is_out=False):
            self.skipTest("this kernel makes no network slow")
        client = self.start("run", "read.lua", "--json", "--param", "path=big.in")
        self.until("it is coming", lambda: blobs.is_coming(self.path("worker-a", "objects")))
        began = time.time()
        self.machines.cut("a")
        self.until_status("a", "lost")
        self.worker("b")
        self.assertLess(self.lost_at(client, "a") - began, 15)

    def test_a_longer_silence_timeout_survives_a_longer_partition(self):
        self.cluster(["a", "b"], head=["--lost-after", "60s"])
        client = self.run_holds()
        self.machines.cut("a")
        time.sleep(20)
        self.machines.heal("a")
        self.open("gate")
        self.ends_with_one_attempt_each(client)

    def test_ranks_on_two_machines_compute_the_same_bits_as_on_one(self):
        alone = self.trains_alone(2)
        self.cluster(["a", "b"], slots=1)
        done = self.good("run", "train.lua", "--json")
        run = self.last_json(done)
        self.assertEqual((run["tasks"][0]["worker"], run["result"]), ("a, b", alone), done)

    def heard_of_song(self, *words):
        """Captures the packets between two ranks' machines; `words` are options of the head."""
        self.write("sings.lua", SINGS)
        self.head(*words)
        for name in ("a", "b"):
            self.worker(name, slots=1)
            self.until_status(name, "up")
        listener = subprocess.Popen(["ip", "netns", "exec", self.machines.of("head"), sys.executable, "-c", LISTEN, "to-b"],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(listener.kill)
        self.assertEqual(listener.stdout.readline(), b"hears\n")
        done = self.start("run", "sings.lua", "--json")
        heard = []
        reader = threading.Thread(target=lambda: heard.append(listener.stdout.read()))
        reader.start()
        run = self.last_json(self.exits(0, self.end(done)))
        listener.stdin.close()
        reader.join()
        listener.stdout.close()
        self.assertEqual((listener.wait(), run["tasks"][0]["worker"], run["result"]), (0, "a, b", 480160))
        return {song for song in (b"a sparrow sings", b"the canary sings") if song in heard[0]}

    def test_messages_of_ranks_are_encrypted_and_long_data_is_not(self):
        self.assertEqual(self.heard_of_song(), {b"the canary sings"})

    def test_with_encrypt_long_data_of_ranks_is_encrypted_too(self):
        self.assertEqual(self.heard_of_song("--encrypt"), set())

    def test_a_gang_resumes_from_its_checkpoint_without_a_disconnected_worker(self):
        alone = self.trains_alone(2)
        self.cluster(["a", "b"], slots=1)
        client = self.train_until(3)
        self.machines.cut("b")
        self.until_status("b", "lost")
        self.worker("c", slots=1)
        self.machines.heal("b")
        self.open_steps(4, 6)
        done = self.exits(0, self.end(client))
        run = self.last_json(done)
        self.assertEqual((run["tasks"][0]["attempts"], run["result"]), (2, alone), done)

    def test_a_gang_whose_machines_cannot_connect_names_them_and_a_firewall(self):
        self.head()
        for name in ("a", "b"):
            self.worker(name, "--resource", "of_lua=1", "--resource", "of_shell=1")
            self.until_status(name, "up")
        self.machines.cut("a", "b")
        self.write("meets.lua", MEETS)
        self.exits(1, self.flow("run", "meets.lua"), "firewall")
        address = re.escape(self.machines.address("b"))
        for name, task in self.tasks().items():
            self.assertEqual((task["attempts"], task["failed_attempts"][0]["cause"]), (1, "lost"), name)
            self.assertRegex(task["error"], r"rank 1 is lost: cannot connect to it at %s:\d+: .* a firewall between these two may drop" % address)
            self.assertIn("rank 0 is on `a`, rank 1 on `b`", task["error"])
        self.assertEqual(sorted(self.tasks()), ["lua", "shell"])
        self.until("the command has ended", lambda: not any(self.nodes()[name]["tasks"] for name in "ab"))

    def test_a_second_head_on_the_state_is_rejected_even_if_the_first_hangs(self):
        self.cluster(["a", "b"])
        client = self.run_holds()
        self.head_process.send_signal(signal.SIGSTOP)
        self.machines.join("other")
        done = self.end(self.start_on("other", "head", "--listen", self.machines.address("other") + ":0"))
        self.exits(4, done, "already has a writer")
        self.head_process.send_signal(signal.SIGCONT)
        self.open("gate")
        self.ends_with_one_attempt_each(client)

    def listening(self, process):
        """Listening ports of the machine on which the process runs."""
        with open("/proc/%d/net/tcp" % process.pid) as table:
            return re.findall(r"^ *\d+: [0-9A-F]{8}:([0-9A-F]{4}) 0+:0000 0A ", table.read(), re.M)

    def test_unauthenticated_processes_reach_only_the_listeners_and_are_harmless(self):
        self.cluster(["a", "b"])
        client = self.run_holds()
        self.machines.join("stranger")
        places = {}
        for name, process in (("head", self.head_process), ("a", self.workers["a"])):
            places[name] = ["%s:%d" % (self.machines.address(name), int(port, 16)) for port in self.listening(process)]
            self.assertGreater(len(places[name]), 1, "UCX listens too")
        reported = subprocess.run(["ip", "netns", "exec", self.machines.of("stranger"), sys.executable, "-c", KNOCK, *places["head"], *places["a"]],
                              stdout=subprocess.PIPE, check=True, text=True).stdout.split()
        self.assertEqual([place for place in reported if place in places["head"]], ["%s:%d" % (self.address, self.port)])
        self.assertEqual(len(reported), 2, reported)
        self.open("gate")
        self.ends_with_one_attempt_each(client)


class Results(machines.MachinesPlace, blobs.BlobsPlace):
    """A worker that is cut off from its head during the transfer of a result."""

    def cut_as_it_comes(self):
        """Starts a run with one task at `a`, and one at `b` that needs its 40 MiB."""
        self.start_workers("ab")
        if not self.machines.slow("a", "80mbit"):
            self.skipTest("this kernel makes no network slow")
        run = self.start("run", "contents.lua", "--json", "--param", "plan=a1:b", "--param", "mib=40")
        self.until("it is coming", lambda: blobs.is_coming(self.path(".flow", "objects")))
        self.machines.cut("a")
        return run

    def ends_with(self, run, attempts):
        """The result arrived once and complete."""
        done = self.last_json(self.exits(0, self.end(run)))
        self.assertEqual(done["result"], [40 * 256 * 1024])
        self.assertEqual({task["name"]: task["attempts"] for task in done["tasks"]}, attempts)
        kept = [path for path in blobs.files_of(self.path(".flow", "objects")) if size_of(path) >= 40 << 20]
        self.assertEqual(len(kept), 1, kept)

    def test_a_result_arrives_once_after_a_short_partition(self):
        run = self.cut_as_it_comes()
        time.sleep(3)
        self.machines.heal("a")
        self.ends_with(run, {"make_a": 1, "use_b": 1})

    def test_a_result_comes_from_the_next_attempt_if_the_worker_was_lost(self):
        run = self.cut_as_it_comes()
        self.until_status("a", "lost")
        self.machines.heal("a")
        self.ends_with(run, {"make_a": 2, "use_b": 1})


class Holders(machines.MachinesPlace, blobs.BlobsPlace):
    """A blob of another worker that can no longer be downloaded from there."""

    def test_a_blob_comes_from_the_head_if_its_holder_is_unreachable(self):
        self.start_workers("ab")
        self.run_plan("a1:b a2:")
        self.until_moved("from_workers", {"b": (1, 4)})
        self.machines.cut("a", "b")  # while they have a session
        self.run_plan("a2:b")
        self.until_moved("from_head", {"b": (1, 4)})
        self.assertEqual(self.moved("from_workers"), {"b": (1, 4)})
        self.assertEqual(self.nodes()["a"]["status"], "up")

    def test_a_blob_comes_from_the_head_if_its_transfer_is_interrupted(self):
        self.start_workers("ab")
        self.run_plan("a1:", mib=40)
        if not self.machines.slow("a", "80mbit"):
            self.skipTest("this kernel makes no network slow")
        run = self.start("run", "contents.lua", "--json", "--param", "plan=a1:b", "--param", "mib=40")
        self.until("it is coming", lambda: blobs.is_coming(self.path("worker-b", "objects")))
        self.machines.cut("a", "b")
        done = self.exits(0, self.end(run))
        self.assertEqual(self.last_json(done)["result"], [40 * 256 * 1024])
        self.until_moved("from_head", {"b": (1, 40)})
        self.assertEqual(self.moved("from_workers"), {})


class Everywhere(machines.MachinesPlace):
    # The name of the real machine may resolve to an address that does not exist in these
    # namespaces.
    RENAMED = ["unshare", "--uts", "sh", "-c", 'hostname localhost && exec "$@"', "sh"]

    def listen(self, address):
        """Starts a head on a machine whose name resolves to loopback. Returns the addresses in the
        lines that it prints."""
        self.head_process = self.start("head", "--listen", address + ":0", before=["ip", "netns", "exec", self.machines.of("head"), *self.RENAMED])
        printed = [self.head_process.stdout.readline() for _ in range(3)]
        self.line = shlex.split(printed[1].split("workers join it with: flow ")[1])
        ways = [re.search(r"listens at (\S+):\d+$", printed[0]), re.search(r" --join (\S+):\d+ ", printed[1]), re.search(r" --head (\S+):\d+ ", printed[2])]
        return {way.group(1) for way in ways}

    def join(self, *names):
        """Starts workers with the line that the head printed."""
        for name in names:
            self.start_on(name, *self.line, "--name", name, "--dir", self.path("worker-" + name), "--jobs", "1")
            self.until_status(name, "up")

    def sings_on(self, workers):
        """Runs two ranks on two machines."""
        self.write("sings.lua", SINGS)
        run = self.last_json(self.good("run", "sings.lua", "--json"))
        self.assertEqual((run["tasks"][0]["worker"], run["result"]), (workers, 480160))

    def have_ipv6(self, *names):
        for name in names:
            if name not in self.machines.names:
                self.machines.join(name)
            try:
                self.machines.add_ipv6(name)
            except subprocess.CalledProcessError:
                self.skipTest("there is no IPv6 here")

    def test_the_printed_line_joins_from_another_machine(self):
        machines.ip("-n", self.machines.of("head"), "route", "add", "default", "dev", "bridge")
        self.assertEqual(self.listen("0.0.0.0"), {self.address})
        self.join("a", "b")
        self.sings_on("a, b")

    def test_the_printed_line_joins_a_head_on_all_ipv6_addresses(self):
        self.have_ipv6("head", "a", "b")
        machines.ip("-n", self.machines.of("head"), "route", "add", "default", "dev", "bridge")
        self.assertEqual(self.listen("[::]"), {self.address})
        self.join("a", "b")
        self.sings_on("a, b")

    def test_the_printed_line_joins_machines_with_ipv6_only(self):
        self.have_ipv6("head", "a", "b")
        for name in "head", "a", "b":
            self.machines.drop_ipv4(name)
        machines.ip("-n", self.machines.of("head"), "-6", "route", "add", "default", "dev", "bridge")
        self.assertEqual(self.listen("[::]"), {"[%s]" % self.machines.ipv6("head")})
        self.join("a", "b")
        self.sings_on("a, b")

    def test_the_printed_line_joins_a_head_at_an_ipv6_address(self):
        self.have_ipv6("head", "a", "b")
        own = "[%s]" % self.machines.ipv6("head")
        self.assertEqual(self.listen(own), {own})
        self.join("a", "b")
        self.sings_on("a, b")

    def joins_alone(self, everywhere, loopback):
        machines.ip("-n", self.machines.of("head"), "link", "set", "bridge", "down")
        self.assertEqual(self.listen(everywhere), {loopback})
        self.join("head")
        self.write("holds.lua", cluster_place.HOLDS)
        self.open("gate")
        self.ends_with_one_attempt_each(self.start("run", "holds.lua", "--json", "--param", "gate=" + self.path("gate")))

    def test_the_printed_line_of_a_loopback_head_joins_from_its_own_machine(self):
        self.joins_alone("0.0.0.0", "127.0.0.1")

    def test_the_printed_line_joins_a_head_on_ipv6_loopback(self):
        self.joins_alone("[::]", "[::1]")


if __name__ == "__main__":
    machines.main()
