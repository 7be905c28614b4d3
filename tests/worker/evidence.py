#!/usr/bin/env python3
"""Evidence of a failed attempt: typed causes, the last lines, logs, the scratch folder; and never secrets.

usage: evidence.py --flow BIN [TEST...]
"""
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import OPTIONS, Place, main  # noqa: E402

HEAD = 'local flow = require "flow"\n'


def own_group(controller):
    """The folder of this process's control group of version 1, or None."""
    with open("/proc/self/cgroup") as file:
        paths = [line.rstrip("\n").split(":", 2) for line in file]
    for _, controllers, path in paths:
        folder = "/sys/fs/cgroup/" + controllers + path
        if controller in controllers.split(",") and os.path.isdir(folder):
            return folder
    return None


class Evidence(Place):
    def failed(self, body, *words, call="t()"):
        """Returns the error of the one task `t`, which must contain all of `words`."""
        self.write("one.lua", HEAD + "local t = " + body + '\nreturn flow.pipeline("one", {}, function() return ' + call +
                   " end)\n")
        self.exits(1, self.flow("run", "one.lua"))
        (task,) = [task for name, task in self.tasks().items() if name == "t"]
        self.assertEqual(task["status"], "failed", task)
        for word in words:
            self.assertIn(word, task["error"])
        return task["error"]

    def shell(self, command, *words, options=""):
        return self.failed('flow.shell("t", { %s command = [[%s]] })' % (options, command), *words, call="t {}")

    def test_an_exit_code_comes_with_the_last_lines_the_folder_and_the_command(self):
        error = self.shell("echo first >&2; touch kept; echo last words >&2; exit 7", "exit code 7", "last words",
                           "exit 7")
        (folder,) = [line.split(": ", 1)[1] for line in error.splitlines() if line.startswith("folder: ")]
        self.assertEqual(sorted(os.listdir(folder)), ["kept"])

    def test_a_signal_is_named(self):
        self.shell("kill -SEGV $$", "signal 11", "Segmentation fault")
        self.shell("kill -KILL $$", "signal 9")

    def test_missing_outputs_are_named(self):
        self.shell("true; true", "`x`", "x.txt", options='outputs = { x = "x.txt" },')
        self.shell("true; true", "`parts`", "*.part", options='outputs = { parts = "*.part" },')

    def test_an_output_that_is_not_a_regular_file_fails_its_attempt_without_retry(self):
        self.shell("mkfifo o", "`o`", "is not a regular file", options='outputs = { o = "o" },')
        self.shell("mkdir o; ln -s ../../.. o/up", "`o`", "`up`", options='outputs = { o = "o" },')
        self.shell("mkdir o; ln -s nowhere o/lost", "`o`", "`lost`", options='outputs = { o = "o" },')
        self.assertEqual(self.tasks()["t"]["attempts"], 1)

    def test_an_attempt_that_can_never_succeed_is_not_retried(self):
        path = 'env = { PATH = "/usr/bin:/bin" }, '  # only the attempt can see which programs exist
        self.shell("true; true", "cannot start `/nope`", options=path + 'shell = { "/nope" },')
        self.assertEqual(self.tasks()["t"]["attempts"], 1)
        self.shell("true; true", "the shell `no-such-shell` was not found in PATH",
                   options=path + 'shell = { "no-such-shell", "-c" },')
        self.assertEqual(self.tasks()["t"]["attempts"], 1)
        if os.geteuid() == 0:
            return  # root may read everything
        self.shell("echo > o; chmod 0 o", "`o`", "Permission denied", options='outputs = { o = "o" },')
        self.assertEqual(self.tasks()["t"]["attempts"], 1)

    def test_a_glob_of_hidden_files_matches_no_folder_around_them(self):
        self.write("hidden.lua", HEAD + r'''
local t = flow.shell("t", { outputs = { all = ".*" }, command = [[touch .a .b; true]] })
return flow.pipeline("hidden", {}, function() return t {}.all end)
''')
        self.good("run", "hidden.lua")
        self.assertEqual([file["$file"]["name"] for file in self.show()["result"]], [".a", ".b"])

    def test_a_missing_shell_is_reported_before_anything_runs(self):
        for shell, words in (("", "`bash`, which was not found in PATH"),
                             ('shell = { "/nope" },', "`/nope`, which is not a program on this machine"),
                             ('shell = { "zshell", "-c" },', "`zshell`, which was not found in PATH")):
            with self.subTest(shell):
                self.write("one.lua", HEAD + 'local t = flow.shell("t", { %s command = "true; true" })\n' % shell +
                           'return flow.pipeline("one", {}, function() return t {} end)\n')
                done = self.flow("run", "one.lua", PATH=self.folder if shell == "" else os.environ["PATH"])
                self.exits(2, done, "one.lua:2: the task `t` needs the shell " + words)
        self.assertEqual(self.runs(), [])

    def test_a_missing_part_or_attempt_is_an_error_of_the_command_line(self):
        self.write("one.lua", HEAD + 'local t = flow.task("t", function() return { a = 1 } end)\n'
                   'return flow.pipeline("one", {}, function() return t() end)\n')
        self.good("run", "one.lua")
        self.exits(2, self.flow("get", "last", "b"), "`b`")
        self.exits(2, self.flow("logs", "last", "t@2"), "no attempt 2")
        with open("/dev/full", "w") as full:
            done = subprocess.run([OPTIONS.flow, "show", "--json"], cwd=self.folder, env=self.env, stdout=full,
                                  stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("No space left", done.stderr)

    def test_a_cancelled_run_stays_cancelled(self):
        self.write("ask.lua", HEAD + 'local ask = flow.task("ask", function(ctx) return ctx:wait("go") end)\n'
                   'return flow.pipeline("ask", {}, function() return ask() end)\n')
        run = self.start("run", "ask.lua")
        self.until_waits("ask")
        self.good("cancel", "last")
        self.exits(1, self.end(run))
        self.exits(2, self.flow("resume"), "cancelled")

    def test_a_memory_limit_error_has_limit_and_peak(self):
        self.failed('flow.task("t", { memory = "64M" }, function() local t = {} '
                    'while true do t[#t + 1] = string.rep("x", 1 << 20) .. #t end end)', "memory", "64 MiB", "peak")
        self.shell('%s -c "x = bytearray(400 << 20); import time; time.sleep(1000)"' % sys.executable, "memory",
                   "64 MiB", options='memory = "64M",')
        self.shell('setsid --wait %s -c "x = bytearray(400 << 20); import time; time.sleep(1000)"' % sys.executable, "memory",
                   "64 MiB", options='memory = "64M",')

    def limits_memory(self):
        checks = {line["check"]: line for line in self.flow("doctor", "--json").lines()}
        return checks["memory limits"]["verdict"] == "ok"

    def test_a_memory_limit_also_applies_to_short_attempts(self):
        if not self.limits_memory():
            self.skipTest("no control group limits memory here")
        self.write("map.lua", HEAD + r'''
local hog = flow.shell("hog", { memory = "40M", args = { "i", "python" },
  command = [[{python} -c "x = b'x' * (100 << 20)" || true; echo {i}]] })
local lua = flow.task("lua", { memory = "40M" }, function(ctx, python)
  return os.execute(python .. [[ -c "x = b'x' * (100 << 20)" || true]])
end)
return flow.pipeline("map", { python = flow.param.string {} }, function(p)
  local all = { lua(p.python) }
  for i = 1, 4 do all[i + 1] = hog(i, p.python) end
  return all
end)
''')
        self.exits(1, self.flow("run", "map.lua", "--param", "python=" + sys.executable))
        for name, task in self.tasks().items():
            self.assertEqual((task["status"], task["attempts"]), ("failed", 1), task)
            # Either the kernel killed it, or the engine saw first that it exceeded the limit.
            self.assertRegex(task["error"], "`%s` was ended: it (needed more memory than its limit of|"
                             "used [0-9]+ MiB of memory, its limit is) 40 MiB" % re.escape(name))

    def test_a_command_that_the_kernel_killed_gets_more_memory(self):
        self.write("more.lua", HEAD + r'''
local t = flow.shell("t", { memory = "40M", retries = { oom = { max = 1, memory = "x8" } }, args = { "python" },
  command = [[{python} -c "x = b'x' * (100 << 20)"]] })
return flow.pipeline("more", { python = flow.param.string {} }, function(p) return t(p.python) end)
''')
        self.good("run", "more.lua", "--param", "python=" + sys.executable)
        self.assertEqual(self.tasks()["t"]["attempts"], 2)

    def test_limits_of_a_container_apply_as_the_machines(self):
        memory = own_group("memory")
        if memory is None or not os.access(memory, os.W_OK):
            self.skipTest("no group of version 1 can be made here")
        groups = []
        for controller, limits in (("memory", {"memory.limit_in_bytes": "1G"}),
                                   ("cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"})):
            group = os.path.join(own_group(controller), "flow-test-%d" % os.getpid())
            os.mkdir(group)
            self.addCleanup(os.rmdir, group)
            groups.append(group)
            for name, value in limits.items():
                with open(os.path.join(group, name), "w") as file:
                    file.write(value)
        def within(groups):
            return ["sh", "-c", "for group in %s; do echo 0 > $group/cgroup.procs; done; exec \"$@\"" % " ".join(groups),
                    "sh"]
        checks = {line["check"]: line["text"]
                  for line in self.end(self.start("doctor", "--json", before=within(groups))).lines()}
        self.assertIn("1.0 GiB", checks["memory"])
        self.assertTrue(checks["cpus"].startswith("1 "), checks["cpus"])
        before = within(groups[:1])
        shown = self.end(self.start("worker", "--show", before=before))
        self.exits(0, shown, "1.0 GiB")
        self.write("big.lua", HEAD + r'''
local t = flow.shell("t", { retries = { oom = { max = 1 } }, args = { "python" },
  command = [[{python} -c "x = b'x' * (2000 << 20)"]] })
return flow.pipeline("big", { python = flow.param.string {} }, function(p) return t(p.python) end)
''')
        self.exits(1, self.end(self.start("run", "big.lua", "--param", "python=" + sys.executable, before=before)))
        task = self.tasks()["t"]
        self.assertEqual(task["attempts"], 2)  # so the cause was memory
        self.assertIn("no memory was left", task["error"])

    def test_more_memory_is_given_if_the_task_asks_for_it(self):
        self.write("more.lua", HEAD + r'''
local t = flow.task("t", { memory = "64M", retries = { oom = { max = 2, memory = "x16" } } }, function(ctx)
  local t = {}
  for i = 1, 120 do t[i] = string.rep("x", 1 << 20) .. i end
  return ctx.attempt
end)
return flow.pipeline("more", {}, function() return t() end)
''')
        self.good("run", "more.lua")
        self.assertEqual(self.show()["result"], 2)

    def test_an_error_has_its_line(self):
        self.failed('flow.task("t", function()\n  error("it went wrong")\nend)', "one.lua:3: it went wrong")
        self.failed('flow.task("t", function()\n  return { { f = print } }\nend)', "result[1].f", "function")

    def test_a_crash_affects_its_own_attempt_only(self):
        self.write("crash.lua", HEAD + r'''
local crash = flow.shell("crash", { command = [[kill -9 $PPID; sleep 1000]] })
local fine = flow.task("fine", function(ctx, i) return i end)
return flow.pipeline("crash", {}, function()
  crash {}
  local list = {}
  for i = 1, 50 do list[i] = fine(i) end
  return list
end)
''')
        self.exits(1, self.flow("run", "crash.lua", "--jobs", "2"))
        run = self.show()
        self.assertEqual(run["result"], list(range(1, 51)))
        self.assertEqual(run["counts"]["failed"], 1)

    def test_the_last_lines_belong_to_the_attempt(self):
        self.write("words.lua", HEAD + r'''
local says = flow.task("says", function() os.execute("echo of another >&2") return 1 end)
local dies = flow.task("dies", function(ctx, n) os.execute("echo its own >&2; kill -9 $PPID") end)
return flow.pipeline("words", {}, function() return dies(says()) end)
''')
        self.exits(1, self.flow("run", "words.lua", "--jobs", "1"))
        why = self.good("why", "last", "dies").out
        self.assertIn("its own", why)
        self.assertNotIn("of another", why)

    def test_output_is_complete_in_the_logs_and_truncated_in_the_result(self):
        self.write("much.lua", HEAD + r'''
local much = flow.shell("much", { command = [[seq 1 300000; echo to stderr >&2]] })
return flow.pipeline("much", {}, function() return much {}.stdout end)
''')
        self.good("run", "much.lua")
        self.assertEqual(len(self.show()["result"]), 1 << 20)
        log = set(self.good("logs", "last", "much").out.splitlines())
        self.assertEqual({"1", "150000", "300000", "to stderr"} - log, set())

    def test_the_log_of_a_gang_has_the_output_of_all_ranks(self):
        # Rank 0 writes nothing: its end reaches the head before the lines of the other ranks.
        self.write("ranks.lua", HEAD + r'''
local t = flow.shell("t", { ranks = 2, cache = false, command = [[ [ "$RANK" = 0 ] || seq 200000 ]] })
return flow.pipeline("ranks", {}, function() t() end)
''')
        for _ in range(4):
            self.good("run", "ranks.lua", "--workers", "2")
            lines = "\n".join(line["text"] for line in self.good("logs", "last", "t", "--json").lines()).split()
            self.assertEqual((len(lines), lines[0], lines[-1]), (200_000, "1", "200000"))
            self.assertTrue(lines == [str(i + 1) for i in range(200_000)], "the lines are in their order")

    def test_the_log_of_a_lua_task_has_its_complete_output(self):
        self.write("wrote.lua", HEAD + r'''
local child = flow.task("child", function() os.execute("seq 200000 | tr '\\n' ' '") end)
local line = flow.task("line", function() io.write(("z"):rep(2500000), "TAIL\n") end)
local pieces = flow.task("pieces", function() for i = 1, 30 do io.write(("q"):rep(100000)) end end)
local lines = flow.task("lines", function() for i = 1, 100000 do print(i) end end)
return flow.pipeline("wrote", {}, function() child() line() pieces() lines() end)
''')
        self.good("run", "wrote.lua")

        def log(task):
            return self.good("logs", "last", task).out
        self.assertEqual(log("child").replace("\n", "").split(), [str(i) for i in range(1, 200001)])
        self.assertEqual(log("line").replace("\n", ""), "z" * 2500000 + "TAIL")
        self.assertEqual(log("pieces").replace("\n", ""), "q" * 3000000)
        self.assertEqual(log("lines").split(), [str(i) for i in range(1, 100001)])

    def test_the_output_of_a_command_belongs_to_its_task_among_many(self):
        self.write("many.lua", HEAD + r'''
local noisy = flow.task("noisy", { env = { TOKEN = flow.env("TOKEN") } }, function(ctx, i)
  os.execute("echo said " .. i .. os.getenv("TOKEN") .. " >&2")
end)
local quiet = flow.task("quiet", function(ctx, i) return i end)
return flow.pipeline("many", {}, function() for i = 1, 400 do noisy(i) quiet(i) end end)
''')
        self.good("run", "many.lua", "--jobs", "1", TOKEN="s3cret")
        reported = [tuple(part.strip() for part in line.split(" | ")) for line in self.good("logs", "last").out.splitlines()]
        names = {1: "noisy"}
        self.assertEqual(sorted(reported), sorted((names.get(i, "noisy#%d" % i), "said %d***" % i) for i in range(1, 401)))

    def test_a_command_of_a_lua_task_has_the_default_signal_handlers(self):
        self.write("mask.lua", HEAD + r'''
local look = "grep -E 'SigBlk|SigIgn' /proc/self/status | tr -d '\\t\\n'"
local by_execute = flow.task("by_execute", function() os.execute(look .. " >&2") end)
local by_popen = flow.task("by_popen", function() return io.popen(look):read("a") end)
local by_shell = flow.shell("by_shell", { command = look })
return flow.pipeline("mask", {}, function() by_execute() return { by_popen(), by_shell().stdout } end)
''')
        self.good("run", "mask.lua")

        def masks(text):
            # Higher numbers are used by the C library.
            return [int(mask, 16) & 0x7fffffff for mask in re.findall("Sig...:([0-9a-f]{16})", text)]
        by_popen, by_shell = self.show()["result"]
        self.assertEqual(masks(by_shell), [0, 0])
        self.assertEqual(masks(by_popen), [0, 0])
        self.assertEqual(masks(self.good("logs", "last", "by_execute").out), [0, 0])

    def test_a_command_of_a_lua_task_ends_when_its_reader_does(self):
        self.write("pipe.lua", HEAD + r'''
local pipe = flow.task("pipe", function() os.execute("(yes; echo status $? >&2) | head -n 1 >&2") end)
return flow.pipeline("pipe", {}, function() pipe() end)
''')
        self.good("run", "pipe.lua")
        self.assertEqual(sorted(self.good("logs", "last", "pipe").out.split("\n")), ["", "status 141", "y"])

    def test_a_flood_of_logs_does_not_fill_the_heads_memory(self):
        self.write("flood.lua", HEAD + r'''
local flood = flow.shell("flood", { args = { "i" }, command = [[seq {i}0000000 {i}7000000]] })
local errors = flow.task("errors", function() os.execute("seq 10000000 11000000 >&2") end)
return flow.pipeline("flood", {}, function()
  errors()
  flow.map(flood, { 1, 2, 3, 4 })
end)
''')
        # In a build with a sanitizer, its quarantine of freed memory must not count.
        options = self.env.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"
        run = self.start("run", "flood.lua", "--quiet", ASAN_OPTIONS=options)
        _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
        self.exits(0, self.end(run))
        self.assertLess(usage.ru_maxrss >> 10, 400)  # MiB; the task prints 260
        self.assertEqual(self.good("logs", "last", "errors").out.split(), [str(i) for i in range(10000000, 11000001)])
        lines = self.good("logs", "last", "flood[3]").out.splitlines()
        self.assertEqual(lines, [str(i) for i in range(30000000, 37000001)])

    def test_a_log_above_its_limit_keeps_its_beginning_and_its_end(self):
        first, last = 10000000, 18000000  # 69 MiB of lines of 9 bytes
        self.write("much.lua", HEAD + r"""
local much = flow.shell("much", { args = { "first", "last" }, command = [[seq {first} {last}; echo said last >&2]] })
return flow.pipeline("much", {}, function() much(%d, %d) end)
""" % (first, last))
        self.good("run", "much.lua", "--quiet")
        lines = self.good("logs", "last", "much").out.splitlines()
        (at,) = [i for i, line in enumerate(lines) if "dropped here" in line]
        reported = re.fullmatch(r"(\d+) lines \(.*\) dropped here: of an attempt's log the first 63 MiB and the last 1 MiB are kept",
                            lines[at])
        self.assertTrue(reported, lines[at])
        ends = [line for line in lines[:at] + lines[at + 1:] if line != "said last"]
        begin, rest = [int(line) for line in ends[:at]], [int(line) for line in ends[at:]]
        self.assertEqual(begin, list(range(first, first + len(begin))))
        self.assertEqual(rest, list(range(last - len(rest) + 1, last + 1)))
        self.assertEqual(len(begin) + int(reported.group(1)) + len(rest), last - first + 1)
        self.assertIn("said last", lines[at:])
        for lines, most in ((begin, 63 << 20), (rest, 1 << 20)):  # a flood of lines is logged in blocks
            self.assertLessEqual(9 * len(lines), most)
            self.assertGreater(9 * len(lines), most - (128 << 10))

    def test_a_timeout_and_a_memory_error_name_the_place_and_the_command(self):
        self.write("ended.lua", HEAD + r'''
local late = flow.shell("late", { timeout = "300ms", args = { "n" }, command = [[sleep {n}]] })
local much = flow.shell("much", { memory = "64M", retries = { max = 0, oom = 0 }, command = [[tail /dev/zero]] })
return flow.pipeline("ended", {}, function() late(30) much() end)
''')
        self.exits(1, self.flow("run", "ended.lua"))
        tasks = self.tasks()
        for name, command in (("late", "sleep 30"), ("much", "tail /dev/zero")):
            message = tasks[name]["error"]
            self.assertIn("command: " + command, message)
            self.assertTrue(os.path.isdir(message.split("folder: ")[1].split("\n")[0]), message)

    def test_logs_follow_a_run_to_its_end(self):
        self.write("talk.lua", HEAD + r'''
local talk = flow.shell("talk", { args = { "gate" }, command = [[
  echo talk >> {gate}.started; echo before the gate
  while [ ! -e {gate} ]; do sleep 0.05; done
  echo behind the gate
]] })
return flow.pipeline("talk", { gate = flow.param.string {} }, function(p) return talk(p.gate).stdout end)
''')
        run = self.start("run", "talk.lua", "--param", "gate=" + self.path("gate"))
        self.until_holds("talk")
        follow = self.start("logs", "last", "talk", "-f")
        self.assertIn("before the gate", follow.stdout.readline())
        self.open("gate")
        self.exits(0, self.end(run))
        self.exits(0, self.end(follow), "behind the gate")

    def test_a_secret_is_used_and_never_stored(self):
        self.write("secret.lua", HEAD + r'''
local use = flow.shell("use", { env = { TOKEN = flow.env("TOKEN") },
  command = [[echo "the token is $TOKEN"; echo "$TOKEN" >&2; printf %s "$TOKEN" | wc -c > n.txt; test ${#TOKEN} -lt 20 ]],
  outputs = { n = "n.txt" } })
local tell = flow.task("tell", { env = { TOKEN = flow.env("TOKEN") } }, function(ctx)
  local token = os.getenv("TOKEN")
  ctx:log("it is %s", token)
  os.execute("echo a command says " .. token .. "; printf unended-" .. token)
  ctx:metric(token, 1)
  ctx:progress(1, { [token] = 1, [1] = { token } })
  ctx:step(token, function() return true end)
  ctx:wait(token, { timeout = "1ms" })
  return #token
end)
return flow.pipeline("secret", {}, function() tell() return use {}.n end)
''')
        self.exits(2, self.flow("run", "secret.lua"), "TOKEN")
        self.assertEqual(self.flow("ls").out, "")
        self.exits(1, self.flow("run", "secret.lua", TOKEN="a-wrong-and-long-s3cret"))
        self.assertNotIn("s3cret", self.good("resume", "--json", TOKEN="right-s3cret-value").out)
        log = self.good("logs", "last", "use").out + self.good("logs", "last", "tell").out
        self.assertIn("the token is ***", log)
        self.assertIn("it is ***", log)
        self.assertIn("a command says ***", log)
        self.assertIn("unended-***", log)
        found = subprocess.run(["grep", "-rl", "s3cret", self.state], capture_output=True, text=True, check=False)
        self.assertEqual(found.stdout, "")
        # The value of a secret is not part of the cache key.
        self.assertIn("cached", self.good("run", "secret.lua", TOKEN="another-s3cret").out)

    def test_a_secret_that_a_task_returns_is_stored_as_it_is(self):
        self.write("gives.lua", HEAD + r"""
local env = { TOKEN = flow.env("TOKEN") }
local give = flow.task("give", { env = env }, function(ctx)
  return { token = os.getenv("TOKEN"), step = ctx:step("ask", function() return os.getenv("TOKEN") end) }
end)
local prints = flow.shell("prints", { env = env, outputs = { o = "o.txt" },
  command = [[echo "it is $TOKEN"; printf %s "$TOKEN" > o.txt]] })
local reads = flow.shell("reads", { args = { "file" }, command = [[cat {file}]] })
return flow.pipeline("gives", {}, function()
  local printed = prints {}
  return { given = give(), printed = printed.stdout, read = reads(printed.o).stdout }
end)
""")
        stored = {"given": {"token": "given-s3cret", "step": "given-s3cret"}, "printed": "it is ***\n",
                  "read": "given-s3cret"}
        # The second run uses the first one's results.
        for token in ("given-s3cret", "another-s3cret"):
            self.good("run", "gives.lua", TOKEN=token)
            self.assertEqual(self.show()["result"], stored)
        self.assertEqual({task["cached"] for task in self.tasks().values()}, {True})
        self.assertEqual(self.good("logs", self.runs()[0]["run"], "reads").out, "given-s3cret\n")

    def test_a_secret_that_contains_another_is_redacted_completely_and_paths_and_ids_are_not(self):
        self.write("two.lua", HEAD + r'''
local env = { USER_NAME = flow.env("USER_NAME"), TOKEN = flow.env("TOKEN"), PIN = flow.env("PIN") }
local fail = flow.shell("fail", { env = env, command = [[echo "login $USER_NAME:$TOKEN pin $PIN"; echo "in $PWD" >&2; exit 1]] })
return flow.pipeline("two", {}, function() return fail() end)
''')
        year = time.strftime("%Y")
        for user, token in (("left", "in-left-right"), (year, year + "-and-the-rest"), ("flow-", "or-flow-state")):
            for first, second in ((user, token), (token, user)):
                done = self.exits(1, self.flow("run", "two.lua", USER_NAME=first, TOKEN=second, PIN="12"))
                folder = re.search("^folder: (.*)$", done.err, re.M).group(1)
                self.assertTrue(folder.startswith(self.state + "/scratch/20"), folder)
                self.assertIn(self.show()["run"], folder)
                log = self.good("logs", "last").out
                self.assertIn("login ***:*** pin 12\n", log)
                self.assertIn("in " + folder + "\n", log)
                self.assertIn("environment variable PIN, whose value has fewer than 4 bytes", done.err)
                self.assertNotIn("USER_NAME,", done.err)

    def test_a_secret_is_redacted_where_a_long_line_is_split(self):
        head = HEAD + r'''
local many = [[printf "$TOKEN%.0s" $(seq 100000)]]
local env = { TOKEN = flow.env("TOKEN") }
'''
        self.write("long.lua", head + r'''
local out = flow.shell("out", { env = env, command = many })
local child = flow.task("child", { env = env }, function() os.execute("TOKEN=" .. os.getenv("TOKEN") .. "; " .. many) end)
local line = flow.task("line", { env = env }, function()
  local token = os.getenv("TOKEN")
  for i = 1, 100000 do io.write(token:sub(1, 15)) io.write(token:sub(16)) end
end)
return flow.pipeline("long", {}, function() child() line() return out {}.stdout end)
''')
        self.write("last.lua", head + r'''
local err = flow.shell("err", { env = env, command = many .. " >&2; exit 1" })
return flow.pipeline("last", {}, function() err {} end)
''')

        def log(task):
            return self.good("logs", "last", task).out.replace("\n", "")
        token = "right-s3cret-value-too"
        self.good("run", "long.lua", TOKEN=token)
        self.assertEqual({task: log(task) for task in ("out", "child", "line")},
                         dict.fromkeys(("out", "child", "line"), "***" * 100000))
        self.assertEqual(set(self.show()["result"]), {"*"})
        self.exits(1, self.flow("run", "last.lua", TOKEN=token))
        self.assertEqual(log("err"), "***" * 100000)
        words = self.tasks()["err"]["error"].rstrip("\n").split("\n")[-1]
        self.assertEqual(set(words), {"*"})

    def test_a_secret_is_redacted_as_json_shells_and_urls_write_it(self):
        self.write("prints.py", """
import json, os, shlex, urllib.parse
token = os.environ["TOKEN"]
for text in (json.dumps({"t": token}), json.dumps(json.dumps(token)), json.dumps(token, ensure_ascii=False),
             shlex.quote(token), urllib.parse.quote(token), urllib.parse.quote_plus(token), repr(token)):
    print(text)
""")
        self.write("forms.lua", HEAD + r"""
local env = { TOKEN = flow.env("TOKEN"), PYTHONUTF8 = "1" }
local prints = flow.shell("prints", { env = env, command = "%s %s; exit 3" })
return flow.pipeline("forms", {}, function() prints {} end)
""" % (sys.executable, self.path("prints.py")))
        token = 'pa"s3cret\\w/1\n\u00f6 +\'s\tend'
        done = self.exits(1, self.flow("run", "forms.lua", "--json", TOKEN=token))
        shown = ['{"t": "***"}', r'"\"***\""', '"***"', "'***", "***'", "***", "***", "'***'"]
        self.assertEqual(self.good("logs", "last", "prints").out.splitlines(), shown)
        error = self.tasks()["prints"]["error"]
        self.assertIn("\n".join(shown), error)
        for text in done.out, done.err, error:
            self.assertNotIn("s3cret", text)

    def test_a_text_about_a_command_is_cut_after_its_secrets_are_redacted(self):
        self.write("cut.lua", HEAD + r"""
local env = { TOKEN = flow.env("TOKEN"), FLOW_LINGER = "0s" }
local fails = flow.shell("fails", { env = env, args = { "word" }, command = ": %s {word} %s; exit 3" })
local leaves = flow.shell("leaves", { env = env,
  command = [[sh -c 'touch r; sleep 60; :' %s "$TOKEN" "$TOKEN" </dev/null >/dev/null 2>&1 &
              while [ ! -e r ]; do sleep 0.01; done]] })
return flow.pipeline("cut", { word = flow.param.string {} }, function(p)
  leaves {}
  fails(p.word)
end)
""" % ("x" * 3985, "x" * 100, "0" * 61))
        token = "it's-a-s3cret-of-some-length"
        self.exits(1, self.flow("run", "cut.lua", "--param", "word=" + token, TOKEN=token))
        error = self.tasks()["fails"]["error"]
        self.assertRegex(error, r"command: : x{3985} '\*\*\*' x+… \(\d+ bytes more\)")
        self.assertNotIn("it'", error)
        log = self.good("logs", "last", "leaves").out
        self.assertIn("sh -c touch r; sleep 60; : " + "0" * 61 + " *** ***`", log)

    def test_a_child_of_a_run_inherits_no_descriptor(self):
        self.write("open.lua", HEAD + r'''
local fds = flow.shell("fds", { command = [[ls /proc/self/fd | tr '\n' ' ']] })
return flow.pipeline("open", {}, function() return fds {}.stdout end)
''')
        self.good("run", "open.lua")
        self.assertEqual(self.show()["result"], "0 1 2 3 ")  # 3 is the folder that ls reads


if __name__ == "__main__":
    main()
