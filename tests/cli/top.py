#!/usr/bin/env python3
"""`flow top`: its numbers on the screen of tmux beside those of `--json`, its keys, sizes and what it survives.

usage: top.py --flow BIN [TEST...]
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, OPTIONS, main, unused_port  # noqa: E402
from tmux_place import TmuxPlace  # noqa: E402

BUSY = HOLD + r'''
local ask = flow.task("ask", function(ctx) return ctx:wait("approved") end)
local bad = flow.task("bad", function() error("it is bad") end)
local many = flow.task("many", function(ctx, i) return i end)
local after = flow.task("after", function(ctx, a) return a end)
return flow.pipeline("busy", {}, function()
  local held = hold("%s", "x")
  local list = {}
  for i = 1, 30 do list[i] = i end
  return { held, ask(), after(held), flow.map(many, list), bad() }
end)
'''


class Top(TmuxPlace):
    def setUp(self):
        super().setUp()
        self.server = "flow-top-%d" % os.getpid()

    # ---- a screen

    def on_screen(self, *words, columns=80, rows=24, env=""):
        """Starts `flow top` in a pane of tmux, whose shell stays."""
        self.addCleanup(self.end_tmux)
        self.tmux("new-session", "-d", "-x", str(columns), "-y", str(rows), "sh")
        command = "%s %s top --interval 100ms %s; echo ENDED $?" % (env, OPTIONS.flow, " ".join(words))
        self.tmux("send-keys", command, "Enter")
        self.until_screen("the first frame", "[1 runs]")

    def keys(self, *keys):
        self.tmux("send-keys", *keys)

    def screen(self):
        return self.tmux("capture-pane", "-p")

    def until_screen(self, what, *texts, without=()):
        try:
            self.until(what, lambda: self.shows(texts, without))
        except AssertionError:
            self.fail("never: %s\n%s" % (what, self.screen()))
        return self.screen()

    def shows(self, texts, without):
        screen = self.screen()
        return all(text in screen for text in texts) and not any(text in screen for text in without)

    def rows_of(self, screen):
        """The cells of each row below the titles, which two spaces separate."""
        lines = screen.rstrip("\n").split("\n")[4:-1]
        return [re.split(" {2,}", line.strip()) for line in lines if line.strip()]

    def begin(self):
        """A run with a task that runs, one that waits for a signal, one for another task, and one that failed."""
        self.write("p.lua", BUSY % self.path("gate"))
        process = self.start("run", "p.lua", "-j", "2")
        self.until_holds("x")
        self.until_waits("ask")
        self.until("the map has ended", lambda: self.view()["run"]["counts"]["succeeded"] == 30)
        self.until("one has failed", lambda: self.view()["run"]["counts"]["failed"] == 1)
        return process

    def view(self, *words):
        return json.loads(self.good("top", "--json", *words).out)

    # ---- without a terminal

    def test_a_state_without_runs(self):
        view = self.view()
        self.assertEqual((view["runs"], view["run"], view["workers"], view["services"], view["waiting"], view["writer"]),
                         ([], None, [], [], [], False))
        self.assertIn("no run yet", self.good("top").out)
        self.exits(2, self.flow("top", "x"), "there is no run")
        self.exits(2, self.flow("top", "--interval", "1ms"), "--interval is 100ms or more")

    def test_the_object_has_what_other_verbs_print(self):
        process = self.begin()
        view = self.view()
        shown = self.show()
        for each in (view["run"], shown):
            for task in each["tasks"]:
                task.pop("duration_s")
        self.assertEqual(view["run"], shown)
        listed = [run["run"] for run in self.runs()]
        self.assertEqual([run["run"] for run in view["runs"]], listed)
        self.assertTrue(view["writer"])
        (worker,) = view["workers"]
        self.assertEqual((worker["cpus"], worker["cpus_used"]), (2, 1))
        self.assertEqual(worker["tasks"], [shown["run"] + " hold"])
        waits = {task["name"]: task["waits_for"] for task in shown["tasks"] if "waits_for" in task}
        self.assertEqual({each["first"]: each["reason"] for each in view["waiting"]}, waits)
        self.assertEqual(len(waits), 2)
        text = self.good("top", "--once").out
        self.assertIn("tasks %d\n" % len(shown["tasks"]), text)
        self.assertRegex(text, r"hold +running")
        # Without its process the run proceeds no more.
        self.kill(process)
        view = self.view()
        self.assertEqual((view["writer"], view["workers"], view["run"]["status"]), (False, [], "interrupted"))

    def test_a_head_gives_the_same_object_and_text_as_its_state(self):
        address = "127.0.0.1:%d" % unused_port()
        self.start("head", "--listen", address, "--jobs", "2")
        self.until("the head listens", lambda: os.path.exists(os.path.join(self.state, "socket")))
        words = ["--head", address, "--secret-file", os.path.join(self.state, "secret")]
        self.start("worker", "--join", address, *words[2:], "--name", "w1", "--jobs", "1", "--dir", self.path("w1"))
        self.until("the worker is up", lambda: [each["status"] for each in self.view()["workers"] if each["node"] == "w1"] == ["up"])
        self.begin()
        here, there = self.view(), self.view(*words)
        (worker,) = [each for each in here["workers"] if each["node"] == "w1"]
        self.assertTrue(worker["address"])
        self.assertTrue(worker["version"])
        for view in (here, there):
            for task in view["run"]["tasks"]:
                task.pop("duration_s")
        self.assertEqual(there["run"], here["run"])
        self.assertEqual({key: there[key] for key in ("workers", "services", "waiting")},
                         {key: here[key] for key in ("workers", "services", "waiting")})
        self.assertEqual([run["run"] for run in there["runs"]], [run["run"] for run in here["runs"]])
        self.assertRegex(self.good("top", "--once", *words).out, r"hold +running")
        self.exits(4, self.flow("top", "--once", "--head", "127.0.0.1:1", "--secret-file", words[-1]), "127.0.0.1:1")

    def test_an_end_has_its_values_and_a_name_selects_a_run(self):
        self.write("p.lua", 'local flow = require "flow"\nlocal t = flow.task("t", function() return 7 end)\n'
                   'return flow.pipeline("p", {}, function() return t() end)')
        for name in ("first", "second"):
            self.good("run", "p.lua", "--name", name)
        self.assertEqual(self.view()["run"]["name"], "second")
        self.assertEqual(self.view("first")["run"], self.show("first"))
        self.exits(2, self.flow("top", "third"), "third")

    # ---- on a terminal

    @unittest.skipUnless(shutil.which("tmux"), "needs tmux")
    def test_the_screen_has_the_numbers_of_the_object(self):
        self.begin()
        view = self.view()
        self.on_screen(columns=100)
        run = view["run"]["run"]
        screen = self.until_screen("the runs", run + "  running", "[1 runs]")
        counts = view["run"]["counts"]
        self.assertIn("%d/%d done, 1 running, 1 waiting, 1 pending, 1 failed" % (
            counts["succeeded"] + 1, len(view["run"]["tasks"])), screen)
        (row,) = self.rows_of(screen)
        self.assertEqual(row[:3], [run, "running", "busy"])
        self.keys("2")
        screen = self.until_screen("the tasks", "[2 tasks]", "hold")
        rows = self.rows_of(screen)
        by_name = {task["name"]: task for task in view["run"]["tasks"]}
        self.assertEqual([row[0] for row in rows[:3]], ["hold", "ask", "bad"])  # those that need attention
        for name, status, *_ in rows:
            self.assertEqual(by_name[name]["status"], status)
        self.keys("3")
        screen = self.until_screen("the workers", "[3 workers]", "(head)")
        self.assertEqual(self.rows_of(screen)[0][:4], ["(head)", "up", "1", "1/2"])
        self.keys("6")
        screen = self.until_screen("what waits", "[6 waiting]", "ask")
        reasons = {each["first"]: each["reason"] for each in view["waiting"]}
        self.assertEqual({row[1] for row in self.rows_of(screen)}, set(reasons))
        for count, first, reason in self.rows_of(screen):
            self.assertEqual(count, "1")
            self.assertTrue(reasons[first].startswith(reason.rstrip("…")), reason)
        self.keys("4")
        self.until_screen("the GPUs", "[4 GPUs]", "6 waiting   0")
        self.keys("?")
        self.until_screen("help", "cancel the chosen run", "any key goes back")
        self.keys("x")
        self.until_screen("the table again", "[4 GPUs]")
        self.keys("q")
        self.until_screen("the end", "ENDED 0", without=["[4 GPUs]"])

    @unittest.skipUnless(shutil.which("tmux"), "needs tmux")
    def test_keys_move_sort_and_filter(self):
        self.begin()
        self.on_screen("last", columns=110)
        self.keys("2")
        self.until_screen("the tasks", "[2 tasks]", "6 waiting   34")
        self.keys("/", "many[2", "Enter")
        screen = self.until_screen("those with the text", "11 of 34 with `many[2`", without=["hold"])
        self.assertEqual({row[0] for row in self.rows_of(screen)}, {"many[%d]" % i for i in [2, *range(20, 30)]})
        self.keys("Escape")
        self.until_screen("all again", "[2 tasks]", "6 waiting   34", "hold")
        self.keys("s", "r")
        screen = self.until_screen("sorted by name", ", by task, reversed")
        names = [row[0] for row in self.rows_of(screen)]
        self.assertEqual(names, sorted(names, reverse=True))
        self.keys("End")
        screen = self.until_screen("the last row", "after")
        self.keys("Home")
        self.until_screen("the first row", "many[9]", without=["after"])

    @unittest.skipUnless(shutil.which("tmux"), "needs tmux")
    def test_a_signal_and_a_cancellation(self):
        process = self.begin()
        self.on_screen()
        self.keys("g")
        self.until_screen("the name of the signal", "signal NAME [JSON]: approved_")
        self.keys(" {", "Enter")
        self.until_screen("an error", "its value is not JSON")
        self.keys("g")
        self.until_screen("the question again", "signal NAME [JSON]: approved_")
        self.keys(' "yes"', "Enter")
        self.until_screen("the signal was sent", "sent `approved` to")
        self.until("the task has it", lambda: self.tasks()["ask"]["status"] == "succeeded")
        self.keys("k")
        self.until_screen("a question", "It cannot be resumed. y or n")
        self.keys("n")
        self.until_screen("nothing happened", "not cancelled")
        self.assertEqual(self.show()["status"], "running")
        self.keys("k", "y")
        self.exits(1, self.end(process))
        self.until_screen("its end", self.show()["run"] + "  cancelled")
        self.assertEqual(self.show()["status"], "cancelled")
        self.keys("k")
        self.until_screen("there is nothing to cancel", "has ended: cancelled")

    @unittest.skipUnless(shutil.which("tmux"), "needs tmux")
    def test_it_fits_each_size(self):
        self.begin()
        self.on_screen()
        self.until_screen("a screen", "[1 runs]")
        for columns, rows in ((120, 40), (40, 10), (30, 5), (80, 24)):
            with self.subTest(columns=columns, rows=rows):
                self.tmux("resize-window", "-x", str(columns), "-y", str(rows))
                self.until("the last line is the last row", lambda: self.fits(columns, rows))
        self.tmux("resize-window", "-x", "15", "-y", "3")
        self.until_screen("a message", "terminal")
        self.tmux("resize-window", "-x", "80", "-y", "24")
        self.until_screen("the screen again", "[1 runs]", "q quit")

    def fits(self, columns, rows):
        lines = self.screen().rstrip("\n").split("\n")
        return len(lines) == rows and lines[-1].startswith("q quit") and max(map(len, lines)) <= columns and "[1 runs]" in "".join(lines)

    @unittest.skipUnless(shutil.which("tmux"), "needs tmux")
    def test_colors_and_characters_are_those_of_the_terminal(self):
        gate = self.path("gate")
        self.write("p.lua", HOLD + 'return flow.pipeline("p", {}, function()\n'
                   '  return { hold("%s", "x"):tag("größe"), hold("%s", "y"):tag("breite") } end)' % (gate, gate))
        self.start("run", "p.lua", "-j", "2")
        self.until_holds("x")
        self.until_holds("y")
        self.on_screen()
        self.keys("2")
        self.until_screen("UTF-8", "hold[größe]")
        self.until("a row has a color", lambda: "\x1b[32m" in self.tmux("capture-pane", "-p", "-e"))
        self.keys("q")
        self.until_screen("the end", "ENDED 0", without=["[2 tasks]"])
        self.keys("clear; NO_COLOR=1 LC_ALL=C %s top; echo OVER $?" % OPTIONS.flow, "Enter")
        self.until_screen("the screen", "[1 runs]")
        self.keys("2")
        self.until_screen("ASCII", "hold[gr??e]")
        self.assertNotRegex(self.tmux("capture-pane", "-p", "-e"), "\x1b\\[[0-9;]*3[0-7]m")
        self.keys("q")
        self.until_screen("the end of the second", "OVER 0", without=["[2 tasks]"])
        self.keys("clear; TERM=no-such-terminal %s top; echo CODE $?" % OPTIONS.flow, "Enter")
        self.until_screen("an error", "the terminal `no-such-terminal` ($TERM) is not known", "CODE 2")
        self.keys("clear; TERM=dumb %s top | head -1; TERM=dumb %s top | tail -1" % (OPTIONS.flow, OPTIONS.flow), "Enter")
        self.until_screen("text", "state " + self.state)

    @unittest.skipUnless(shutil.which("tmux"), "needs tmux")
    def test_it_outlives_the_writer_and_begins_before_the_state(self):
        self.on_screen()
        self.until_screen("no run", "no run yet")
        process = self.begin()
        self.until_screen("the run appears", "  running  31/34 done")
        self.kill(process)
        self.until_screen("the writer died", "no process writes it", "interrupted")
        shutil.rmtree(self.state)
        self.until_screen("the state was removed", "no run yet")
        self.keys("C-c")
        self.until_screen("the end", "ENDED 0")

    @unittest.skipUnless(shutil.which("tmux"), "needs tmux")
    def test_it_ends_with_its_terminal(self):
        self.begin()
        self.on_screen()
        self.until_screen("the screen", "[1 runs]")
        shell = int(self.tmux("display", "-p", "#{pane_pid}"))
        (top,) = subprocess.run(["pgrep", "-P", str(shell)], capture_output=True, text=True).stdout.split()
        self.end_tmux()
        self.until("the process has ended", lambda: not os.path.exists("/proc/" + top))

    @unittest.skipUnless(shutil.which("tmux"), "needs tmux")
    def test_a_run_of_many_tasks_that_is_written_fast(self):
        count = 100000
        self.write("p.lua", 'local flow = require "flow"\nlocal one = flow.task("one", function(ctx, i) return i end)\n'
                   'return flow.pipeline("many", {}, function() local list = {} for i = 1, %d do list[i] = i end\n'
                   'return flow.map(one, list) end)' % count)
        process = self.start("run", "p.lua", "--quiet")
        self.until("it runs", lambda: os.path.exists(self.state) and self.view()["run"] is not None)
        self.on_screen(columns=120)
        self.keys("2")
        self.until_screen("all tasks", "[2 tasks]", "6 waiting   %d" % count)
        self.keys("End")
        self.until_screen("the last one", "one[")
        self.assertEqual(self.end(process).code, 0)
        self.keys("Escape")
        self.until_screen("its end", "succeeded  %d/%d done" % (count, count))
        self.keys("/", "one[99999]")
        self.until_screen("one of them", "1 of %d with `one[99999]`" % count)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
