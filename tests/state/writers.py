#!/usr/bin/env python3
"""Several `flow` processes with one state: one writes, the others are its clients, and any of them
may be killed."""
import fcntl
import os
import shutil
import signal
import socket
import stat
import struct
import threading
import time

import place

SCRIPT = place.HOLD + r'''
local echo = flow.shell("echo", { args = { "word" }, env = { TOKEN = flow.env("TOKEN") },
  command = [[printf '%s' "$TOKEN" | tr a-z A-Z; echo ' '{word}]] })
return flow.pipeline("writers", { gate = flow.param.string {}, label = flow.param.string {} }, function(p)
  return { held = hold(p.gate, p.label).stdout, said = echo(p.label).stdout }
end)
'''
PAIR = place.HOLD + r'''
return flow.pipeline("pair", { gate = flow.param.string {} }, function(p)
  local items = {}
  for i = 1, 4 do items[i] = hold(p.gate, "item" .. i).stdout end
  return items
end)
'''


class Writers(place.Place):
    def setUp(self):
        super().setUp()
        self.write("pipeline.lua", SCRIPT)

    def clean(self):
        self.open("gate", "gate1", "gate2")
        super().clean()

    def begin(self, label, gate, *words):
        process = self.start("run", ".", "--name", label, "--param", "gate=" + self.path(gate), "--param",
                             "label=" + label, *words, TOKEN="token-" + label)
        self.until_holds(label, gate)
        return process

    def open_gate(self):
        self.open("gate1")
        return self.path("gate1")

    def result(self, label):
        return {"held": label + "\n", "said": "TOKEN-" + label.upper() + " " + label + "\n"}

    def test_a_second_run_is_a_client_with_its_own_streams_and_environment(self):
        writer = self.begin("alpha", "gate1", "--json")
        client = self.begin("beta", "gate2", "--json")
        self.open("gate2")
        beta = self.exits(0, self.end(client))
        self.assertEqual(beta.lines()[-1]["result"], self.result("beta"))
        self.assertIsNone(writer.poll())
        self.open("gate1")
        alpha = self.exits(0, self.end(writer))
        self.assertEqual(alpha.lines()[-1]["result"], self.result("alpha"))
        for done in (alpha, beta):
            self.assertEqual({line["run"] for line in done.lines()}, {done.lines()[-1]["run"]})
        self.assertNotIn("BETA", alpha.out)

    def test_a_writer_of_another_client_protocol_is_an_error_that_names_both_versions(self):
        self.good("run", ".", "--param", "gate=" + self.open_gate(), "--param", "label=alpha", TOKEN="t")
        answered = []
        is_over = threading.Event()

        def answer(listening):
            while not is_over.is_set():
                client, _ = listening.accept()
                with client:
                    size = client.recv(4, socket.MSG_WAITALL)
                    if not size:
                        continue  # it only looked whether there is a writer
                    preface = client.recv(struct.unpack("<I", size)[0], socket.MSG_WAITALL)
                    self.assertIn(b"version\x02", preface)
                    answered.append(preface)
                    other = preface.replace(b"version\x02", b"version\x03")
                    client.sendall(struct.pack("<I", len(other)) + other)
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(65536):
                        pass

        path = os.path.join(self.state, "socket")
        with open(os.path.join(self.state, "lock"), "w") as lock, socket.socket(socket.AF_UNIX) as listening:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            listening.bind(path)
            listening.listen()
            thread = threading.Thread(target=answer, args=[listening])
            thread.start()
            try:
                for words in (["run", "."], ["retry", "last", "echo"], ["cancel", "last"],
                              ["signal", "last", "go"], ["gc"], ["nodes"]):
                    with self.subTest(words[0]):
                        self.exits(4, self.flow(*words, TOKEN="t"), "uses version 3 (flow ", "of the client protocol",
                                   "this one uses version 2 (flow ", "use the same build of flow for both")
                self.assertEqual(len(answered), 6)
            finally:
                is_over.set()
                with socket.socket(socket.AF_UNIX) as last:
                    last.connect(path)
                thread.join()
                os.unlink(path)

    def test_a_follower_of_logs_is_notified_when_the_writer_dies(self):
        writer = self.begin("alpha", "gate1")
        follower = self.start("logs", "alpha", "-f")
        time.sleep(1)
        self.assertIsNone(follower.poll())
        self.kill(writer)
        self.exits(3, self.end(follower), "is interrupted", "flow resume")
        self.assertIn("was running when its flow ended", self.good("why", "alpha", "hold").out)
        self.exits(3, self.flow("logs", "alpha", "-f"), "is interrupted", "flow resume")
        self.good("logs", "alpha")

    def test_nothing_holds_resources_once_the_writer_is_dead(self):
        self.write("waits.lua", """
local flow = require "flow"
local hold = flow.shell("hold", { args = { "n" }, command = [[touch %s/started-{n}; while [ ! -e %s/gate ]; do sleep 0.05; done]] })
return flow.pipeline("waits", {}, function() return flow.map(hold, { 1, 2, 3 }) end)
""" % (self.folder, self.folder))
        writer = self.start("run", "waits.lua", "-j", "1")
        self.until("a task runs", lambda: os.path.exists(self.path("started-1")))
        self.assertIn("held by `hold[1]`", self.good("why", "last", "hold[3]").out)
        self.kill(writer)
        run = self.show()
        self.assertEqual((run["status"], run["counts"]["running"], run["counts"]["ready"]), ("interrupted", 1, 2))
        wait = "its run was interrupted: `flow resume %s` continues it" % run["run"]
        self.assertEqual(self.tasks()["hold[3]"]["waits_for"], wait)
        self.assertIn(wait, self.good("why", "last", "hold[3]").out)
        shown = self.good("show").out
        self.assertIn("was running", shown)
        for out in (shown, self.good("why").out):
            self.assertNotIn("held", out)

    def test_ls_counts_active_and_killed_runs_as_show_does(self):
        def listed_as_shown():
            for run in self.runs():
                shown = self.show(run["run"])
                del shown["tasks"]
                shown.pop("usage", None)  # the sums of the tasks
                shown.pop("actions", None)
                self.assertEqual(run, shown)
        writer = self.begin("alpha", "gate1", "--jobs", "4")
        client = self.begin("beta", "gate2")
        for name in ("alpha", "beta"):
            self.until("echo of %s ends" % name, lambda: self.show(name)["counts"]["succeeded"] == 1)
        listed_as_shown()
        self.assertEqual([(r["status"], r["counts"]["succeeded"], r["counts"]["running"]) for r in self.runs()],
                         [("running", 1, 1)] * 2)
        self.assertEqual(self.good("ls").out.count("1/2 tasks"), 2)
        self.kill(client), self.kill(writer)
        listed_as_shown()
        self.assertEqual([(r["status"], r["counts"]["succeeded"]) for r in self.runs()], [("interrupted", 1)] * 2)
        self.open("gate1")
        self.good("resume", "alpha", TOKEN="token")
        listed_as_shown()
        self.assertEqual([r["counts"]["succeeded"] for r in self.runs()], [2, 1])

    def test_a_client_has_its_own_exit_code(self):
        writer = self.begin("alpha", "gate1")
        self.write("bad.lua", 'local flow = require "flow"\n'
                   'local bad = flow.task("bad", function(ctx) error("no luck") end)\n'
                   'return flow.pipeline("bad", {}, function(p) return bad() end)\n')
        self.exits(1, self.flow("run", "bad.lua"), "no luck")
        self.write("wrong.lua", "return 1 +")
        self.exits(2, self.flow("run", "wrong.lua"), "wrong.lua:1")
        self.open("gate1")
        self.exits(0, self.end(writer))

    def test_jobs_of_a_client_limit_its_own_run(self):
        writer = self.start("run", ".", "--jobs", "8", "--name", "alpha", "--param", "gate=" + self.path("gate1"),
                            "--param", "label=alpha", TOKEN="alpha")
        self.until_holds("alpha", "gate1")
        self.write("pair.lua", PAIR)
        client = self.start("run", "pair.lua", "--jobs", "1", "--name", "pair", "--param",
                            "gate=" + self.path("gate2"))
        self.until("the first item runs", lambda: os.path.exists(self.path("gate2.started")))
        self.assertEqual(self.show("pair")["counts"]["running"], 1)
        self.open("gate2")
        self.exits(0, self.end(client))
        self.open("gate1")
        self.exits(0, self.end(writer))

    def test_ctrl_c_of_a_client_interrupts_its_run_only(self):
        writer = self.begin("alpha", "gate1")
        client = self.begin("beta", "gate2", "--grace", "0s")
        client.send_signal(signal.SIGINT)
        self.exits(3, self.end(client))
        self.until("beta is interrupted", lambda: self.show("beta")["status"] == "interrupted")
        self.assertEqual(self.show("alpha")["status"], "running")
        self.open("gate2")
        self.exits(0, self.flow("resume", "beta", TOKEN="token-beta"))
        self.assertEqual(self.show("beta")["result"], self.result("beta"))
        self.open("gate1")
        self.exits(0, self.end(writer))

    def test_a_killed_client_interrupts_its_run_only(self):
        writer = self.begin("alpha", "gate1")
        self.kill(self.begin("beta", "gate2", "--grace", "0s"))
        self.until("beta is interrupted", lambda: self.show("beta")["status"] == "interrupted")
        self.open("gate1")
        self.exits(0, self.end(writer))

    def test_resume_waits_for_a_run_that_is_being_interrupted(self):
        writer = self.begin("alpha", "gate1")
        client = self.begin("beta", "gate2", "--grace", "8s")
        self.kill(client)
        time.sleep(1)
        self.assertEqual(self.show("beta")["status"], "running")
        resumed = self.start("resume", "beta", TOKEN="token-beta")
        self.until("it runs again", lambda: self.tasks("beta")["hold"]["attempts"] == 2)
        self.open("gate2")
        self.exits(0, self.end(resumed))
        self.assertEqual(self.show("beta")["result"], self.result("beta"))
        self.open("gate1")
        self.exits(0, self.end(writer))

    def test_resume_of_a_run_that_succeeds_while_it_is_interrupted_reports_that(self):
        writer = self.begin("alpha", "gate1")
        self.kill(self.begin("beta", "gate2", "--grace", "60s"))
        time.sleep(1)
        resumed = self.start("resume", "beta", "--json", TOKEN="token-beta")
        time.sleep(1)
        self.open("gate2")
        done = self.exits(0, self.end(resumed))
        self.assertEqual(done.lines()[-1]["result"], self.result("beta"))
        self.open("gate1")
        self.exits(0, self.end(writer))

    def test_ctrl_c_of_the_writer_does_not_affect_its_clients_runs(self):
        writer = self.begin("alpha", "gate1", "--grace", "0s")
        client = self.begin("beta", "gate2")
        writer.send_signal(signal.SIGINT)
        line = ""
        while "still running 1 run" not in line:
            line = writer.stderr.readline()
            self.assertNotEqual(line, "", "the writer says nothing of its client")
        self.assertEqual(self.show("alpha")["status"], "interrupted")
        self.assertIsNone(writer.poll())
        self.open("gate2")
        self.exits(0, self.end(client), "succeeded")
        self.exits(3, self.end(writer))

    def test_clients_of_a_stopped_writer_are_notified_and_new_ones_end(self):
        writer = self.begin("alpha", "gate1")
        follower = self.begin("beta", "gate2", "--json")
        writer.send_signal(signal.SIGSTOP)
        asking = [self.start("nodes"), self.start("run", ".", "--param", "gate=" + self.path("gate1"), "--param", "label=gamma")]
        for client in asking:
            done = self.exits(4, self.end(client))
            self.assertIn("has not answered for 10 s", done.err)
            self.assertIn("may still execute this request then", done.err)
            self.assertIn("process %d " % writer.pid, done.err)
        reported = ""
        while "has not answered" not in reported:
            reported = follower.stdout.readline()
            self.assertTrue(reported, "it ended")
        writer.send_signal(signal.SIGCONT)
        self.open("gate1", "gate2")
        self.assertEqual(self.exits(0, self.end(follower)).lines()[-1]["result"], self.result("beta"))
        self.exits(0, self.end(writer))

    def test_a_client_takes_over_from_a_killed_writer(self):
        writer = self.begin("alpha", "gate1", "--jobs", "4")
        first, second = self.begin("beta", "gate2", "--jobs", "4"), self.begin("gamma", "gate2", "--jobs", "4")
        self.kill(writer)
        self.until("the attempts start again",
                   lambda: sorted(self.read("gate2.started").split()) == ["beta", "beta", "gamma", "gamma"])
        self.open("gate2")
        for label, client in (("beta", first), ("gamma", second)):
            self.exits(0, self.end(client))
            self.assertEqual(self.show(label)["result"], self.result(label))
        self.assertEqual(self.show("alpha")["status"], "interrupted")

    def test_a_writer_that_dies_before_its_answer_leaves_no_second_run(self):
        writer = self.start("run", ".", "--name", "alpha", "--param", "gate=" + self.path("gate1"), "--param",
                            "label=alpha", TOKEN="a", FLOW_FAILPOINT="client-before-answer:1")
        self.until_holds("alpha", "gate1")
        client = self.begin("beta", "gate2")
        self.assertEqual(self.end(writer).code, -signal.SIGKILL)
        self.open("gate2")
        self.exits(0, self.end(client))
        self.assertEqual([(run["name"], run["status"]) for run in self.runs()],
                         [("alpha", "interrupted"), ("beta", "succeeded")])
        self.assertEqual(self.show("beta")["result"], self.result("beta"))

    def test_a_writer_that_dies_before_its_answer_has_retried_a_task_once(self):
        self.open("gate2")
        self.exits(0, self.end(self.begin("beta", "gate2")))
        writer = self.start("run", ".", "--name", "alpha", "--param", "gate=" + self.path("gate1"), "--param",
                            "label=alpha", TOKEN="a", FLOW_FAILPOINT="client-before-answer:1")
        self.until_holds("alpha", "gate1")
        self.exits(0, self.flow("retry", "beta", "echo", TOKEN="again"))
        self.assertEqual(self.end(writer).code, -signal.SIGKILL)
        self.assertEqual(self.show("beta")["result"]["said"], "AGAIN beta\n")
        # One more if the attempt had started when the writer died.
        self.assertLessEqual(self.tasks("beta")["echo"]["attempts"], 3)

    def test_a_state_that_is_removed_stops_its_writer(self):
        writer = self.begin("alpha", "gate1")
        shutil.rmtree(self.state)
        self.open("gate1")
        self.exits(4, self.end(writer), "the state `%s` was removed or replaced" % self.state)

    def test_a_state_that_replaces_another_one_belongs_to_the_next_writer(self):
        writer = self.begin("alpha", "gate1")
        shutil.rmtree(self.state)
        self.open("gate2")
        other = ["run", ".", "--name", "beta", "--param", "gate=" + self.path("gate2"), "--param", "label=beta"]
        self.exits(0, self.flow(*other, TOKEN="token-beta"))
        self.open("gate1")
        self.exits(4, self.end(writer), "was removed or replaced")
        self.assertEqual([run["name"] for run in self.runs()], ["beta"])

    def test_the_lock_of_a_dead_process_is_replaced(self):
        self.open("gate")
        words = ["run", ".", "--param", "gate=" + self.path("gate"), "--param", "label=alpha"]
        self.exits(0, self.flow(*words, TOKEN="a"))
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        for pid, boot_id in ((1, "00000000-0000-0000-0000-000000000000"), (2 ** 22 - 1, boot), (os.getpid(), boot)):
            self.write(".flow/lock", "process %d on here since 2020-01-01T00:00:00Z\nboot %s start 1\n" % (pid, boot_id))
            dead = socket.socket(socket.AF_UNIX)  # and its socket
            dead.bind(self.path(".flow/socket")) if not os.path.exists(self.path(".flow/socket")) else None
            dead.close()
            self.exits(0, self.flow(*words, TOKEN="a"))

    def both_go_on(self, pair):
        """A process that has ended by now must give the reason."""
        for process in pair:
            if process.poll() is not None:
                self.fail(self.end(process))
        return True

    def test_two_runs_that_start_at_once_compute_a_key_once(self):
        for turn in range(3):
            words = ["run", ".", "--param", "gate=" + self.path("gate"), "--param", "label=turn%d" % turn]
            pair = [self.start(*words, TOKEN="t") for _ in range(2)]
            self.until_holds("turn%d" % turn, "gate")
            self.until("both are submitted", lambda: self.both_go_on(pair) and len(self.runs()) == 2 * (turn + 1))
            self.open("gate")
            for process in pair:
                self.exits(0, self.end(process))
            self.assertEqual(self.read("gate.started").split().count("turn%d" % turn), 1)
            os.unlink(self.path("gate"))

    def test_short_runs_meet_a_writer_that_is_ending(self):
        self.open("gate")
        for turn in range(4):
            words = ["run", ".", "--param", "gate=" + self.path("gate"), "--param", "label=turn%d" % turn]
            for process in [self.start(*words, TOKEN="t") for _ in range(4)]:
                self.exits(0, self.end(process))
        self.assertEqual([run["status"] for run in self.runs()], ["succeeded"] * 16)

    def test_every_writing_verb_is_a_client(self):
        self.write("wait.lua", 'local flow = require "flow"\n'
                   'local w = flow.task("w", function(ctx) return ctx:wait("go") end)\n'
                   'return flow.pipeline("wait", {}, function(p) return w() end)\n')
        writer = self.begin("alpha", "gate1")
        waiting = self.start("run", "wait.lua", "--name", "wait")
        self.until("it waits", lambda: any(r.get("name") == "wait" for r in self.runs()) and
                   self.show("wait")["counts"]["waiting"] == 1)
        self.good("signal", "wait", "go", "7")
        self.exits(0, self.end(waiting))
        self.assertEqual(self.show("wait")["result"], 7)
        self.good("retry", "wait", "w", "--json")
        self.good("gc", "--keep", "5")
        beta = self.begin("beta", "gate2")
        self.good("cancel", "beta")
        self.exits(1, self.end(beta), "cancelled")
        self.assertIsNone(writer.poll())
        self.open("gate1")
        self.exits(0, self.end(writer))

    def test_garbage_on_the_socket_is_harmless(self):
        writer = self.begin("alpha", "gate1")
        path = self.path(".flow/socket")
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        frames = [b"", b"x", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, struct.pack("<I", 0), struct.pack("<I", 5) + b"\xff" * 5,
                  struct.pack("<I", 1) + b"\xf6", struct.pack("<I", 1) + b"\xa0", struct.pack("<I", 1) + b"\x05",
                  struct.pack("<I", 1) + b"\x80", struct.pack("<I", 1 << 20) + b"cut", struct.pack("<I", 2000) + b"\x81" * 2000]
        silent = []
        for frame in frames:
            for closes in (True, False):
                link = socket.socket(socket.AF_UNIX)
                link.connect(path)
                link.sendall(frame)
                link.close() if closes else silent.append(link)
        beta = self.begin("beta", "gate2")
        self.open("gate2", "gate1")
        self.exits(0, self.end(beta))
        self.exits(0, self.end(writer))
        for link in silent:
            link.close()

    def test_silent_clients_do_not_block_others_and_are_disconnected(self):
        writer = self.begin("alpha", "gate1")
        places = 256  # connections of the writer
        silent = []
        for _ in range(places + 8):
            link = socket.socket(socket.AF_UNIX)
            self.addCleanup(link.close)
            link.connect(self.path(".flow/socket"))
            link.settimeout(place.WAIT_SECONDS_MAX)
            silent.append(link)
        beta = self.begin("beta", "gate2")
        self.open("gate2")
        self.exits(0, self.end(beta))
        for link in silent:
            self.assertEqual(link.recv(64), b"")  # the end, without any message before
        self.open("gate1")
        self.exits(0, self.end(writer))


if __name__ == "__main__":
    place.main()
