#!/usr/bin/env python3
"""The display of `flow run` on a terminal: rows, colors, ASCII, failures, results, and that a pane of tmux keeps
its history. What needs tmux is left out where there is none.

usage: display.py --flow BIN [TEST...]
"""
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, OPTIONS, main  # noqa: E402
from tmux_place import TmuxPlace  # noqa: E402

# Reports progress about ten times per second until `gate` exists.
BUSY = r'''
local busy = flow.task("busy", function(ctx, gate)
  local step = 0
  while not os.execute("test -e " .. gate) do
    step = step + 1
    ctx:progress(step %% 100 / 100, { step = step })
    os.execute("sleep 0.05")
  end
  return step
end)
'''.replace("%%", "%")
SEQUENCE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


def plain(text):
    return SEQUENCE.sub("", text).replace("\r", "")


class Display(TmuxPlace):
    def script(self, head, body):
        self.write("p.lua", HOLD + BUSY + head + 'return flow.pipeline("p", {}, function()\n%s\nend)\n' % body)

    def on_terminal(self, *words, rows=24, columns=100, **env):
        """Runs flow on a pseudo-terminal. Returns the exit code and what it wrote."""
        master, slave = pty.openpty()
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {name: value for name, value in self.env.items()
                       if name not in ("NO_COLOR", "CLICOLOR_FORCE", "LC_ALL", "LC_CTYPE", "LANG")}
        environment.update({"TERM": "xterm", "LANG": "C.UTF-8", **env})
        process = subprocess.Popen([OPTIONS.flow, *words], cwd=self.folder, env=environment,
                                   stdin=slave, stdout=slave, stderr=slave)
        self.processes.append(process)
        os.close(slave)
        out = b""
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:
                break
            if not chunk:
                break
            out += chunk
        os.close(master)
        return process.wait(), out.decode()

    def test_a_comparison_fits_the_terminal(self):
        self.write("p.lua", '''local flow = require "flow"
        local score = flow.task("score", function(ctx, i, rate) ctx:metric("loss", i * rate) ctx:metric("size", i) end)
        return flow.pipeline("p", { rate = flow.param.number { default = 1 } }, function(p)
          return flow.map(score, { 1, 2, 3, 4, 5, 6 }, p.rate):tag(function(i) return "s" .. i end)
        end)''')
        for rate in ("0.5", "0.25"):
            self.good("run", "p.lua", "--name", "rate-" + rate, "--param", "rate=" + rate)
        words = ["compare", "rate-0.5", "rate-0.25"]
        code, out = self.on_terminal(*words, columns=100)
        self.assertEqual(code, 0, out)
        head, *rows, omitted = out.splitlines()
        self.assertLess(max(len(line) for line in (head, *rows)), 100)
        self.assertEqual(re.split(" {2,}", head), ["run", "name", "rate", "score[s1] loss last", "score[s1] loss best"])
        self.assertEqual([row.split()[1:4] for row in rows], [["rate-0.5", "0.5", "0.5"], ["rate-0.25", "0.25", "0.25"]])
        self.assertEqual(omitted, "left out, because the terminal is too narrow: `score[s1] size last`, `score[s1] size best`, "
                         "`score[s2] loss last`, `score[s2] loss best` and 18 more columns. --metric NAME and --task TASK "
                         "select metrics; --json prints all of them.")
        chosen = self.on_terminal(*words, "--task", "score[s6]", "--metric", "size", columns=100)[1].splitlines()
        self.assertEqual(re.split(" {2,}", chosen[0]), ["run", "name", "rate", "size last", "size best"])
        self.assertEqual(len(chosen), 3)
        # A pipe gets all columns.
        self.assertEqual(len(re.split(" {2,}", self.good(*words).out.splitlines()[0])), 27)

    def test_rows_stay_after_the_run(self):
        self.script('''local list = flow.task("list", function() return { 1, 2, 3 } end)
        local work = flow.task("work", function(ctx, i) return i end)
        ''', '''local one = work(7)
        return { flow.map(work, list()), one, hold("%s", "x"):tag("s1") }''' % self.path("gate"))
        self.open("gate")
        code, out = self.on_terminal("run", "p.lua")
        self.assertEqual(code, 0, out)
        end = plain(out)
        self.assertRegex(end, r"list +\S+ +1/1 ")
        self.assertRegex(end, r"work +\S+ +4/4 ")
        self.assertRegex(end, r"hold\[s1\] +\S+ +1/1 ")
        self.assertIn("\x1b[32msucceeded\x1b[0m: 6 tasks", out)
        code, out = self.on_terminal("run", "p.lua")
        self.assertRegex(plain(out), r"work +\S+ +4/4  4 cached")

    def test_a_resumed_run_counts_what_ended_before(self):
        self.script('''local work = flow.task("work", function(ctx, i)
          if i == 3 and not os.execute("test -e gate2") then error("no gate") end
          return i
        end)
        '''.replace("gate2", self.path("gate2")), "return flow.map(work, { 1, 2, 3 })")
        self.on_terminal("run", "p.lua")
        self.open("gate2")
        code, out = self.on_terminal("resume")
        self.assertEqual(code, 0, out)
        self.assertRegex(plain(out), r"work +\S+ +3/3 ")

    def test_colors_are_those_that_the_user_wants(self):
        self.script('local work = flow.task("work", function(ctx, i) return i end)\n',
                    "return flow.map(work, { 1, 2, 3 })")
        color = re.compile(r"\x1b\[[0-9;]*m")
        for words, env, wanted in (((), {}, True), ((), {"NO_COLOR": "1"}, False), (("--color", "never"), {}, False),
                                   (("--color=always",), {"NO_COLOR": "1"}, True), ((), {"TERM": "dumb"}, False)):
            with self.subTest(words=words, env=env):
                code, out = self.on_terminal("run", "p.lua", *words, **env)
                self.assertEqual((code, color.search(out) is not None), (0, wanted), out)
        for words, env, wanted in (((), {}, False), ((), {"CLICOLOR_FORCE": "1"}, True),
                                   ((), {"CLICOLOR_FORCE": "0"}, False), (("--color", "always"), {}, True),
                                   (("--color", "always", "--json"), {}, False)):
            with self.subTest(words=words, env=env):
                self.env.pop("NO_COLOR", None)
                done = self.good("run", "p.lua", *words, **env)
                self.assertEqual("\x1b[" in done.out, wanted, done)
        self.exits(2, self.flow("run", "p.lua", "--color", "sometimes"), "--color takes `auto`, `always` or `never`")

    def test_a_locale_without_utf8_gets_ascii(self):
        self.script('local work = flow.task("work", function(ctx, i) return i end)\n',
                    "local l = {} for i = 1, 300 do l[i] = i end return flow.map(work, l)")
        code, out = self.on_terminal("run", "p.lua", LC_ALL="C")
        self.assertEqual(code, 0, out)
        self.assertTrue(out.isascii(), out)
        self.assertIn("...]", out)

    def test_a_failure_is_shown_once_with_the_last_line_of_its_log(self):
        self.script('''local bad = flow.task("bad", { retries = { max = 1, backoff = "50ms" } }, function(ctx, i)
          print("reading " .. i .. " of " .. ctx.attempt)
          if i == "b" then error("no sample") end
          return i
        end)
        local sh = flow.shell("sh", { outputs = { o = "o" }, command = [[echo shell wrote; exit 3]] })
        ''', 'sh() return flow.map(bad, { "a", "b" }):tag(function(s) return s end)')
        for run in (lambda: self.flow("run", "p.lua"), lambda: self.on_terminal("run", "p.lua", "--fresh")):
            done = run()
            code, out = done if isinstance(done, tuple) else (done.code, done.out + done.err)
            out = plain(out)
            self.assertEqual(code, 1, out)
            self.assertEqual(len(re.findall(r"`bad\[b\]` failed after 2 attempts: p.lua:\d+: no sample", out)), 1, out)
            self.assertIn("\nlast line: reading b of 2\n", out)
            self.assertEqual(out.count("`sh` ended with exit code 3"), 1, out)
            self.assertEqual(out.count("shell wrote\n"), 1, out)
        done = self.flow("run", "p.lua", "--fresh")
        self.assertRegex(done.out, r"bad\[b\]: waits for a new attempt \(2 of 2, in \d+m?s\), after: p.lua")
        self.assertRegex(done.out, r"bad\[b\]: failed in [\d.]+m?s\n")

    def test_a_client_of_a_writer_has_rows_and_last_lines_too(self):
        self.script("", 'return hold("%s", "held")' % self.path("gate"))
        writer = self.start("run", "p.lua")
        self.until_holds("held")
        self.write("other.lua", """local flow = require "flow"
        local bad = flow.task("bad", function(ctx, i) ctx:log("at " .. i) if i == 2 then error("no") end end)
        return flow.pipeline("other", {}, function() return flow.map(bad, { 1, 2, 3 }) end)""")
        code, out = self.on_terminal("run", "other.lua")
        self.assertEqual(code, 1, out)
        self.assertRegex(plain(out), r"bad +\S+ +3/3  1 failed")
        self.assertIn("last line: at 2\n", plain(out))
        self.open("gate")
        self.exits(0, self.end(writer))

    def test_a_long_result_is_a_few_lines(self):
        self.script('local work = flow.task("work", function(ctx, i) return { text = ("x"):rep(20), i = i } end)\n',
                    "local l = {} for i = 1, 120 do l[i] = i end return { all = flow.map(work, l), one = 1 }")
        done = self.good("run", "p.lua")
        result = done.out[done.out.index("result:"):].splitlines()
        self.assertEqual(len(result), 5, result)
        self.assertTrue(result[1].startswith('  all  [120 items: {"i":1,"text":"xxxxxxxxxxxxxxxxxxxx"}, {'), result)
        self.assertTrue(result[1].endswith("…]"), result)
        self.assertEqual(result[2], "  one  1")
        self.assertIn("`flow get ", result[3])
        self.assertEqual(len(json.loads(self.good("run", "p.lua", "--json", "--quiet").out)["result"]["all"]), 120)

    # ---- in a pane of tmux

    def history(self):
        return int(self.tmux("display", "-p", "#{history_size}"))

    def screen(self):
        return self.tmux("capture-pane", "-p").rstrip("\n").split("\n")

    def until_screen(self, what, holds):
        self.until(what, lambda: holds("\n".join(self.screen())))

    def until_redrawn(self, times):
        """Until the pane has shown this many different steps of `busy`."""
        seen = set()

        def has_all():
            seen.update(re.findall(r"step=\d+", "\n".join(self.screen())))
            return len(seen) >= times
        self.until("the frame is redrawn", has_all)

    @unittest.skipUnless(shutil.which("tmux"), "needs tmux")
    def test_a_pane_keeps_its_history(self):
        self.script("local many = {} for i = 1, 30 do many[i] = flow.task('task' .. i, function() end) end\n",
                    'local b = busy("%s") for i = 1, 30 do many[i](b) end return hold("%s", "x")'
                    % (self.path("gate"), self.path("gate")))
        self.addCleanup(self.end_tmux)
        for rows in (5, 12):
            with self.subTest(rows=rows):
                self.server = "flow%d" % rows  # the server of the pane before may still be ending
                self.tmux("new-session", "-d", "-x", "90", "-y", str(rows), "sh")
                self.tmux("send-keys", "%s run p.lua --fresh -j 2" % OPTIONS.flow, "Enter")
                self.until_redrawn(3)
                before = self.history()
                self.until_redrawn(20)
                self.assertEqual(self.history(), before)
                self.check_resized(4)
                self.check_resized(30)
                self.check_resized(rows)
                self.tmux("resize-window", "-x", "50")
                self.until_screen("the run is there", lambda screen: "0/32 done" in screen)
                self.assertEqual("\n".join(self.screen()).count("/32 done"), 1)
                self.open("gate")
                self.until_screen("the end", lambda screen: "succeeded: 32 tasks" in screen.replace("\n", ""))
                os.remove(self.path("gate"))
                self.end_tmux()

    def check_resized(self, rows):
        self.tmux("resize-window", "-y", str(rows))
        height = rows - 2
        expected = min(height - 1 - (height >= 3), 20)
        self.until("the frame has its new size",
                   lambda: len([line for line in self.screen() if line.startswith("  ")]) >= expected)
        self.until_redrawn(2)
        before = self.history()
        self.until_redrawn(10)
        self.assertEqual(self.history(), before)
        self.assertLessEqual(len([line for line in self.screen() if line.startswith("  ")]), max(rows - 3, 1))


if __name__ == "__main__":
    main()
