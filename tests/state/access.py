#!/usr/bin/env python3
"""Access control: the state, the network, descriptors of child processes, and the files that `get` writes."""
import json
import os
import socket
import stat
import subprocess
import unittest
import urllib.error
import urllib.request

import place

PLAIN = '''
local flow = require "flow"
local one = flow.task("one", function(ctx, n) return n + 1 end)
return flow.pipeline("plain", { count = flow.param.int { default = 1 } }, function(p) return one(p.count) end)
'''
SERVES = '''
local flow = require "flow"
local echo = flow.service("echo", { port = 0 }, function(ctx)
  return { predict = function(inputs)
    if inputs.bad then error("these are not for me") end
    return inputs
  end }
end)
return flow.pipeline("serves", {}, function(p) return echo() end)
'''
LOOKS = '''
local flow = require "flow"
local shell = flow.shell("shell", { cache = false,
  command = [[for f in /proc/self/fd/* /proc/$PPID/fd/*; do echo "$f $(readlink $f || true)"; done]] })
local direct = flow.shell("direct", { cache = false, command = "ls -l /proc/self/fd" })
return flow.pipeline("looks", {}, function(p) return { shell = shell().stdout, direct = direct().stdout } end)
'''
FILES = '''
local flow = require "flow"
local make = flow.shell("make", { outputs = { one = "one.txt", all = "all" }, command = [[
  echo one > one.txt; mkdir all all/in; echo a > all/a; echo b > all/in/b; ln -s %s all/away ]] })
return flow.pipeline("files", {}, function(p) local made = make() return { one = made.one, all = made.all } end)
'''
KEPT = place.HOLD + '''
local make = flow.shell("make", { outputs = { out = "out.bin" }, command = "head -c 300000 /dev/zero > out.bin" })
local size = flow.shell("size", { args = { "file", "after" }, command = "wc -c < {file}" })
return flow.pipeline("kept", { gate = flow.param.string {} }, function(p)
  local out = make().out
  return size(out, hold(p.gate, "here"):after(out).stdout).stdout
end)
'''


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def below(pid):
    """`pid` and all its descendants."""
    parents = {}
    for name in os.listdir("/proc"):
        try:
            with open("/proc/%s/stat" % int(name)) as file:
                parents[int(name)] = int(file.read().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError):
            continue
    found = {pid}
    while more := {p for p, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def links(pid):
    """The open descriptors of a process: {number: target}."""
    found = {}
    for name in os.listdir("/proc/%d/fd" % pid):
        try:
            found[int(name)] = os.readlink("/proc/%d/fd/%s" % (pid, name))
        except OSError:
            pass
    return found


def listened(pids):
    """(address in hex, port) of each TCP socket on which one of `pids` listens."""
    inodes = set()
    for pid in pids:
        try:
            inodes |= {link[8:-1] for link in links(pid).values() if link.startswith("socket:[")}
        except OSError:
            pass
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not os.path.exists(table):
            continue
        with open(table) as file:
            for line in file.read().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and words[9] in inodes:
                    address, port = words[1].split(":")
                    found.append((address, int(port, 16)))
    return found


AGAIN = '''
local flow = require "flow"
local make = flow.task("make", function(ctx, n) return flow.zeros({ 100000 }, "f32") end)
return flow.pipeline("again", { n = flow.param.int { default = 1 } }, function(p) return make(p.n) end)
'''


class Access(place.Place):
    def setUp(self):
        super().setUp()
        self.write("pipeline.lua", PLAIN)

    def test_a_state_is_created_private_with_any_umask(self):
        before = os.umask(0)
        try:
            self.good("run", ".")
        finally:
            os.umask(before)
        self.assertEqual(mode_of(self.state), 0o700)
        for folder, _, files in os.walk(self.state):
            for name in files:
                self.assertEqual(mode_of(os.path.join(folder, name)) & 0o022, 0, name)

    def test_an_empty_folder_becomes_a_private_state(self):
        os.mkdir(self.state)
        os.chmod(self.state, 0o777)
        self.good("run", ".")
        self.assertEqual(mode_of(self.state), 0o700)

    def test_a_readable_state_is_made_private_and_a_writable_one_is_rejected(self):
        self.good("run", ".")
        os.chmod(self.state, 0o755)
        self.good("run", ".")
        self.assertEqual(mode_of(self.state), 0o700)
        for mode in (0o770, 0o707, 0o1777):
            os.chmod(self.state, mode)
            self.exits(4, self.flow("run", "."), "can be written by other users", "chmod 700 ")
            self.assertEqual(mode_of(self.state), mode)
        os.chmod(self.state, 0o700)
        self.good("run", ".")

    @unittest.skipIf(os.geteuid() != 0, "only root gives files away")
    def test_a_state_of_another_user_is_rejected_however_it_was_found(self):
        self.good("run", ".")
        os.chown(self.state, 65534, 65534)
        self.exits(4, self.flow("run", "."), "belongs to another user (uid 65534)")
        self.exits(4, self.flow("run", ".", "--state", self.state), "belongs to another user (uid 65534)")
        os.rename(self.state, self.path("theirs"))
        os.chown(self.path("theirs"), os.geteuid(), -1)
        os.symlink(self.path("theirs"), self.state)
        self.good("run", ".")
        os.lchown(self.state, 65534, 65534)
        self.exits(4, self.flow("run", "."), "belongs to another user (uid 65534)")

    def serve(self):
        self.write("serves.lua", SERVES)
        process = self.start("run", "serves.lua", "--serve-for", "600s")
        self.until("it serves", lambda: (
            (done := self.flow("show", "--json")).code == 0 and json.loads(done.out)["status"] == "serving"))
        return process, self.show()["result"]["url"]

    def test_a_service_and_its_flow_listen_on_loopback_only(self):
        process, url = self.serve()
        found = listened(below(process.pid) | set(self.serving()))
        self.assertIn(("0100007F", int(url.rsplit(":", 1)[1])), found)
        self.assertEqual({address for address, _ in found}, {"0100007F"})
        sockets = [os.path.join(folder, name) for folder, _, names in os.walk(self.state) for name in names
                   if stat.S_ISSOCK(os.lstat(os.path.join(folder, name)).st_mode)]
        self.assertTrue(sockets)
        self.assertEqual({mode_of(path) for path in sockets}, {0o600})

    def ask(self, url, body):
        request = urllib.request.Request(url + "/v2/models/echo/infer", data=json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=place.WAIT_SECONDS_MAX) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def test_a_failed_service_is_null_in_the_result(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            self.write("serves.lua", SERVES.replace("port = 0", "port = %d" % taken.getsockname()[1]))
            self.exits(1, self.flow("run", "serves.lua", "--serve-for", "1s"))
        self.assertIsNone(self.show()["result"])

    @unittest.skipUnless(os.geteuid() == 0, "only root becomes another user")
    def test_an_unreadable_state_is_not_reported_as_empty(self):
        self.write("plain.lua", PLAIN)
        self.good("run", "plain.lua")
        os.chmod(self.folder, 0o755)
        for words in (["ls"], ["show"], ["why"], ["logs"], ["get", "last"], ["resume"], ["cancel", "last"],
                      ["signal", "last", "go"], ["nodes"]):
            process = subprocess.Popen([place.OPTIONS.flow, *words, "--state", self.state], env=self.env, cwd="/",
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       text=True, user=65534)
            self.processes.append(process)
            self.exits(4, self.end(process), self.state, "Permission denied")

    def test_a_missing_state_is_named(self):
        done = self.good("ls", "--state", "nowhere")
        self.assertEqual(done.out, "")
        self.assertIn(self.path("nowhere"), done.err)

    def test_a_folder_that_is_not_a_state_is_not_changed(self):
        self.write("plain.lua", PLAIN)
        os.mkdir(self.path("mine"), 0o755)
        self.write("mine/notes.txt", "mine")
        self.exits(2, self.flow("run", "plain.lua", "--state", "mine"), "notes.txt")
        self.assertEqual(os.listdir(self.path("mine")), ["notes.txt"])
        self.assertEqual(mode_of(self.path("mine")), 0o755)

    def test_an_error_of_predict_is_the_services_and_an_invalid_body_the_clients(self):
        _, url = self.serve()
        tensor = {"shape": [1], "datatype": "FP32", "data": [2]}
        status, answer = self.ask(url, {"inputs": [dict(tensor, name="x")]})
        self.assertEqual((status, answer["outputs"][0]["data"]), (200, [2]))
        status, answer = self.ask(url, {"inputs": [dict(tensor, name="bad")]})
        self.assertEqual(status, 500, answer)
        self.assertIn("these are not for me", answer["error"])
        status, answer = self.ask(url, {"inputs": [dict(tensor, name="x", data=[1, 2])]})
        self.assertEqual(status, 400, answer)

    def test_children_inherit_only_their_connection_and_slot(self):
        process, _ = self.serve()
        children = below(process.pid) - {process.pid}
        self.assertTrue(children)
        state = os.path.realpath(self.state)
        for child in children:
            for number, target in links(child).items():
                private = target.startswith(state) and not target.startswith((state + "/objects", state + "/scratch/slots"))
                self.assertFalse(private, "%d holds %d: %s" % (child, number, target))
        mine = {link for link in links(process.pid).values() if link.startswith("socket:")}
        for child in children:  # no socket of the head, of either kind, is open in a child
            theirs = {link for link in links(child).values() if link.startswith("socket:")}
            self.assertEqual(mine & theirs, set())

    def test_a_shell_task_has_only_stdio(self):
        self.write("looks.lua", LOOKS)
        self.good("run", "looks.lua")
        result = self.show()["result"]
        numbers = {int(line.split(" -> ")[0].split()[-1]) for line in result["direct"].splitlines() if " -> " in line}
        self.assertTrue(numbers)
        self.assertLessEqual(numbers, {0, 1, 2, 3})  # 3 is the folder that ls reads
        own = [line for line in result["shell"].splitlines() if line.startswith("/proc/self/fd/")]
        self.assertTrue(own)
        for line in own:
            self.assertNotIn("socket:", line)
            self.assertNotIn(".flow/db", line)

    def test_get_writes_only_within_its_target(self):
        self.write("files.lua", FILES % self.path("secret"))
        self.write("secret", "kept")
        self.flow("run", "files.lua")
        if self.show()["status"] == "succeeded":
            self.flow("get", "last", "-o", "out")
        self.assertEqual(self.read("secret"), "kept")
        self.write("files.lua", (FILES % "x").replace("; ln -s x all/away", ""))
        self.good("run", "files.lua")
        os.mkdir(self.path("out2"))
        os.symlink(self.path("secret"), self.path("out2", "one.txt"))
        os.symlink(self.path("secret"), self.path("out2", "one.txt.flow-part"))
        self.good("get", "last", "-o", "out2")
        self.assertEqual(self.read("out2/one.txt"), "one\n")
        self.assertEqual(self.read("secret"), "kept")
        os.mkdir(self.path("elsewhere"))
        os.mkdir(self.path("out3"))
        os.symlink(self.path("elsewhere"), self.path("out3", "all"))
        self.exits(4, self.flow("get", "last", "-o", "out3"), "out3/all", "is a symbolic link")
        self.assertEqual(os.listdir(self.path("elsewhere")), [])
        self.good("get", "last", "-o", "out4")
        self.assertEqual(self.read("out4/one.txt"), "one\n")
        self.assertEqual(self.read("out4/all/in/b"), "b\n")

    def test_an_invalid_target_of_get_is_rejected_with_a_reason(self):
        self.write("files.lua", (FILES % "x").replace("; ln -s x all/away", ""))
        self.good("run", "files.lua")
        self.write("file", "kept")
        os.symlink("nowhere", self.path("dangling"))
        os.symlink(self.state, self.path("link"))
        before = sorted(os.listdir(self.state))
        for target, words in {".flow": "it is in the state", ".flow/new": "it is in the state",
                              ".flow/objects/x/y": "it is in the state", "link/new": "it is in the state",
                              ".flow/scratch": "it is in the state",
                              "dangling": "`dangling` is a symbolic link to `nowhere`, which does not exist",
                              "dangling/x": "`dangling` is a symbolic link to `nowhere`, which does not exist",
                              "file": "`file` is not a folder", "file/x": "`file` is not a folder",
                              self.path("file/x/y"): "`%s` is not a folder" % self.path("file")}.items():
            for verb in (["get", "last", "-o", target], ["run", "files.lua", "--out", target]):
                with self.subTest(target, verb=verb[0]):
                    done = self.exits(2, self.flow(*verb), words, "Name another folder")
                    self.assertNotIn("filesystem error", done.err)
        self.assertEqual(len(self.runs()), 1)
        self.assertEqual(sorted(os.listdir(self.state)), before)
        self.assertEqual(self.read("file"), "kept")
        self.assertFalse(os.path.lexists(self.path("nowhere")))
        # A name of the result that exists already, and the folder of a task, which may run flow
        # there.
        os.mkdir(self.path("out"))
        self.write("out/all", "")
        self.exits(4, self.flow("get", "last", "-o", "out"), "`out/all` is not a folder")
        self.good("get", "last", "-o", ".flow/scratch/task/out")

    def test_gc_during_a_run_and_before_a_resume_removes_nothing_that_is_needed(self):
        self.write("kept.lua", KEPT)
        run = self.start("run", "kept.lua", "--param", "gate=" + self.path("gate"))
        self.until_holds("here")
        for _ in range(3):
            self.good("gc", "--keep", "0")
        self.kill(run)
        self.good("gc", "--keep", "0")
        self.open("gate")
        self.good("resume")
        self.assertEqual(self.show()["result"].strip(), "300000")

    def test_a_blob_that_is_written_again_counts_as_new(self):
        self.write("again.lua", AGAIN)
        self.good("run", "again.lua")
        for folder, _, names in os.walk(self.path(".flow", "objects")):
            for name in names:
                os.utime(os.path.join(folder, name), (1e9, 1e9))
        self.good("run", "again.lua", "--param", "n=2")
        ages = [os.path.getmtime(os.path.join(folder, name))
                for folder, _, names in os.walk(self.path(".flow", "objects")) for name in names]
        self.assertEqual(len(ages), 1)
        self.assertGreater(ages[0], 1e9)  # gc keeps it until the run has committed it

    def test_a_state_is_usable_after_its_runs_were_removed(self):
        for kept in ("0", "1", "20"):
            with self.subTest(kept):
                for count in range(3):
                    self.good("run", ".", "--param", "count=%d" % (count + 1))
                self.good("gc", "--keep", kept)
                self.good("run", ".", "--param", "count=1")
                self.good("gc", "--keep", kept)
                self.good("run", ".")

    def test_a_killed_gc_leaves_a_usable_state(self):
        for point in ("commit-before", "commit-after", "turn-before-commit", "turn-after-commit"):
            for count in (1, 2, 3):
                with self.subTest("%s:%d" % (point, count)):
                    self.good("run", ".", "--param", "count=%d" % count)
                    self.flow("gc", "--keep", "0", FLOW_FAILPOINT="%s:%d" % (point, count))
                    self.good("run", ".", "--param", "count=1")
                    self.good("gc", "--keep", "0")

    def test_the_nearest_name_is_suggested(self):
        self.good("run", ".", "--name", "weekly")
        for words, near in ((("rnu", "."), "run"), (("run", ".", "--fersh"), "--fresh"),
                            (("show", "wekly"), "weekly"), (("why", "last", "oen"), "one"),
                            (("retry", "last", "oen"), "one"), (("logs", "last", "oen"), "one"),
                            (("run", ".", "--param", "cuont=2"), "count"), (("run", "pipelin.lua"), "pipeline.lua")):
            with self.subTest(words):
                self.exits(2, self.flow(*words), near)

    def test_an_option_without_a_value_is_rejected(self):
        for words, option in ((("ls", "--state", ""), "--state"), (("--state", "", "ls"), "--state"),
                              (("run", ".", "--head", ""), "--head"), (("run", ".", "--name", ""), "--name"),
                              (("run", ".", "--secret-file", ""), "--secret-file"), (("head", "--listen", ""), "--listen"),
                              (("worker", "--dir", "", "--show"), "--dir"), (("worker", "--name", "", "--show"), "--name"),
                              (("worker", "--join", ""), "--join"),
                              (("worker", "--secret-file", "", "--show"), "--secret-file"),
                              (("worker", "--memory", "", "--show"), "--memory"),
                              (("run", ".", "--out", ""), "--out"), (("run", ".", "--params", ""), "--params"),
                              (("run", ".", "--grace", ""), "--grace"), (("run", ".", "--param", ""), "--param"),
                              (("run", ".", "--serve-for", ""), "--serve-for"), (("run", ".", "--qos", ""), "--qos"),
                              (("get", "last", "-o", ""), "--out"), (("get", "last", "--out="), "--out"),
                              (("get", "last", "--out=", "count"), "--out"), (("run", "--name=", "."), "--name"),
                              (("--state=", "ls"), "--state")):
            with self.subTest(words):
                self.exits(2, self.flow(*words), option, "needs a value")
        for words in (("--label", "a=1", "--label", "a=2"), ("--resource", "a=1", "--resource", "a=2")):
            self.exits(2, self.flow("worker", "--show", *words), "`a` is given twice")

    def test_an_empty_argument_is_not_a_missing_one(self):
        self.good("run", ".", "-q")
        for words, what in ((("cancel", ""), "RUN"), (("signal", "", "go"), "RUN"), (("signal", "last", ""), "NAME"),
                            (("signal", "last", "go", ""), "JSON"), (("retry", ""), "RUN"), (("retry", "last", ""), "TASK"),
                            (("retry", "", ""), "RUN"), (("resume", ""), "RUN"), (("get", ""), "RUN"),
                            (("get", "", "-o", "x"), "RUN"), (("get", "last", ""), "PART"), (("show", ""), "RUN"),
                            (("logs", "last", ""), "TASK[@ATTEMPT]"), (("why", ""), "RUN"), (("diff", "", ""), "RUN"),
                            (("diff", "last", ""), "RUN"), (("run", ""), "FILE|DIR"), (("plan", ""), "FILE|DIR"),
                            (("lint", ""), "FILE|DIR"), (("graph", ""), "FILE|RUN"), (("init", ""), "DIR")):
            with self.subTest(words):
                done = self.exits(2, self.flow(*words), "`flow %s`: %s (" % (words[0], what), "is empty; it may come from an unset shell variable")
                self.assertEqual(done.out, "")
        self.assertFalse(os.path.exists(self.path("x")))

    def test_an_empty_argument_does_not_resume_a_waiting_run(self):
        self.write("ask.lua", """local flow = require "flow"
local ask = flow.task("ask", function(ctx) return ctx:wait("go") end)
return flow.pipeline("ask", {}, function() return ask() end)
""")
        run = self.start("run", "ask.lua")
        self.until_waits("ask")
        self.exits(2, self.flow("cancel", ""))
        self.exits(2, self.flow("signal", "last", "go", ""))
        self.good("signal", "last", "go", "false")
        self.exits(0, self.end(run))
        self.assertEqual(self.good("get").out, "false\n")

    def test_a_state_whose_disk_is_not_mounted_is_not_created_again(self):
        away = self.path("off", "flow")
        os.symlink(away, self.state)
        os.makedirs(self.path("a", "b"))
        inner = os.path.join("a", "b")
        for folder in (".", inner):
            for words in (("run", self.path("pipeline.lua")), ("ls",), ("show",), ("doctor",), ("gc",)):
                with self.subTest((folder, words)):
                    done = self.end(self.start(*words, before=("env", "-C", folder)))
                    self.exits(4, done, "the state `%s` is a symbolic link to `%s`, which does not exist" % (self.state, away))
        for state, advice in ((".flow", "mount the disk that holds it, remove the link, or"),
                              (".flow/below", "Mount the disk that holds it, or name another state")):
            self.exits(4, self.flow("ls", "--state", state), "`%s`" % self.state, away, advice)
        self.assertEqual(os.listdir(self.path(inner)), [])
        os.makedirs(away)
        self.exits(0, self.end(self.start("run", self.path("pipeline.lua"), "-q", before=("env", "-C", inner))))
        self.assertIn("db", os.listdir(away))

    def test_a_folder_of_the_state_whose_disk_is_not_mounted_is_named_at_once(self):
        self.good("run", "pipeline.lua", "-q")
        for part in ("objects", "db"):
            with self.subTest(part):
                inside, away = os.path.join(self.state, part), self.path("off")
                os.makedirs(inside, exist_ok=True)
                os.rename(inside, inside + ".kept")
                os.symlink(away, inside)
                said = "`%s` is a symbolic link to `%s`, which does not exist" % (inside, away)
                self.exits(4, self.flow("run", "pipeline.lua"), said, "Mount the disk")
                self.exits(4, self.flow("doctor"), said)
                self.exits(0 if part == "objects" else 4, self.flow("show"))
                os.remove(inside)
                os.rename(inside + ".kept", inside)
                self.good("run", "pipeline.lua", "-q")


if __name__ == "__main__":
    place.main()
