#!/usr/bin/env python3
"""Commands of shell tasks: processes that they leave running, their length, and their outputs.

usage: commands.py --flow BIN [TEST...]
"""
import gzip
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import OPTIONS, Place, main  # noqa: E402, F401

HEAD = 'local flow = require "flow"\n'


class Commands(Place):
    def script(self, tasks, body):
        self.write("p.lua", HEAD + tasks + '\nreturn flow.pipeline("p", {}, function()\n' + body + "\nend)\n")

    def shell(self, command, options="", call="{}", part=""):
        """A script with one shell task `t`."""
        self.script('local t = flow.shell("t", { %s command = [[%s]] })' % (options, command),
                    "return t %s%s" % (call, part))

    def result(self, code=0, **env):
        done = self.exits(code, self.flow("run", "p.lua", **env))
        return self.show()["result"] if code == 0 else done.out + done.err

    def error(self, **env):
        self.result(1, **env)
        return self.tasks()["t"]["error"]

    def copied(self, name):
        self.good("get", "last", "-o", "out")
        with open(self.path("out", name), "rb") as file:
            return file.read()

    # ---- processes that outlive the command

    def test_an_output_of_a_process_substitution_is_complete(self):
        self.shell("seq 1 300000 | tee >(gzip -9 > o.gz) | wc -l", 'outputs = { o = "o.gz" },', part=".o")
        self.result()
        self.assertEqual(gzip.decompress(self.copied("o.gz")).split(), [b"%d" % i for i in range(1, 300001)])

    def test_an_output_that_a_background_process_writes_late_is_awaited(self):
        self.shell(": > o.txt; (while [ ! -e gate ]; do sleep 0.01; done; echo late > o.txt) & (sleep 0.3; touch gate) &",
                   'outputs = { o = "o.txt" },', part=".o")
        self.result()
        self.assertEqual(self.copied("o.txt"), b"late\n")

    def test_a_process_that_left_its_process_group_is_awaited_too(self):
        self.shell("setsid sh -c 'sleep 0.3; echo late > o.txt' & :", 'outputs = { o = "o.txt" },', part=".o")
        self.result()
        self.assertEqual(self.copied("o.txt"), b"late\n")

    def test_late_output_is_in_the_log_and_the_result(self):
        self.shell("exec > >(sleep 0.2; sed 's/^/> /'); echo one; echo two", part=".stdout")
        self.assertEqual(self.result(), "> one\n> two\n")
        self.assertEqual(self.good("logs", "last", "t").out, "> one\n> two\n")

    def test_an_attempt_fails_if_an_output_is_still_open_for_writing(self):
        self.shell("(exec > o.txt; echo begun; exec sleep 1000) & while [ ! -s o.txt ]; do sleep 0.01; done",
                   'outputs = { o = "o.txt" }, env = { FLOW_LINGER = "300ms" },')
        error = self.error()
        for words in ("p.lua:2: the command of `t` ended and left 1 process running, which was ended after 300ms",
                      "`sleep 1000` still had `o.txt` open for writing", "FLOW_LINGER"):
            self.assertIn(words, error)
        self.assertIn("warning: the command left 1 process", self.good("logs", "last", "t").out)
        again = self.exits(1, self.flow("run", "p.lua"))  # nothing was cached
        self.assertIn("open for writing", again.out + again.err)

    def test_a_shared_mapping_counts_as_open_for_writing(self):
        self.write("map.py", "import mmap, os, time\nf = open('o.bin', 'w+b')\nf.truncate(4096)\n"
                   "m = mmap.mmap(f.fileno(), 4096)\nf.close()\nopen('ready', 'w').close()\ntime.sleep(1000)\n")
        self.shell("%s %s & while [ ! -e ready ]; do sleep 0.01; done" % (sys.executable, self.path("map.py")),
                   'outputs = { o = "o.bin" }, env = { FLOW_LINGER = "100ms" },')
        self.assertIn("`o.bin` open for writing", self.error())

    def test_a_process_that_only_reads_is_ended_with_a_warning(self):
        self.shell("echo kept > o.txt; exec 3< o.txt; sleep 1000 & setsid sleep 1001 &",
                   'outputs = { o = "o.txt" }, env = { FLOW_LINGER = "100ms" },', part=".o")
        self.result()
        self.assertEqual(self.copied("o.txt"), b"kept\n")
        words = "warning: the command left 2 processes running, which were ended after 100ms: `s"
        self.assertIn(words, self.good("logs", "last", "t").out)
        self.assertIn(words, self.good("why", "last", "t").out)
        self.assertIn(words, self.good("why", "last").out)

    def test_remaining_processes_do_not_delay_a_stop(self):
        self.shell("echo begun > o.txt; (while [ ! -e never ]; do sleep 0.05; done) & touch %s" % self.path("left"),
                   'outputs = { o = "o.txt" }, env = { FLOW_LINGER = "1000s" },')
        run = self.start("run", "p.lua", "--grace", "1000s")
        self.until("the command has ended", lambda: os.path.exists(self.path("left")))
        run.terminate()
        self.exits(3, self.end(run))  # the attempt did not succeed, so it runs again
        self.assertIn(self.tasks()["t"]["status"], ("pending", "ready"))

    def test_remaining_processes_do_not_delay_a_failure(self):
        self.shell("sleep 100000 & exit 3", 'env = { FLOW_LINGER = "100000s" },')
        self.assertIn("exit code 3", self.error())

    def test_an_invalid_linger_time_is_an_error(self):
        self.shell("true; true", 'env = { FLOW_LINGER = "soon" },')
        self.assertIn("`FLOW_LINGER` of `t` is not a duration", self.error())

    def test_a_file_that_a_program_of_a_lua_task_writes_is_awaited(self):
        self.script('local t = flow.task("t", { env = { FLOW_LINGER = flow.env("LINGER") } }, function(ctx)\n'
                    '  os.execute("cd " .. ctx.dir .. "; (exec > o.txt; sleep 0.3; echo late) & '
                    'while [ ! -e o.txt ]; do sleep 0.01; done")\n'
                    '  return ctx:file("o.txt")\nend)', "return t()")
        self.result(LINGER="100s")
        self.assertEqual(self.copied("o.txt"), b"late\n")
        self.write("p.lua", self.read("p.lua").replace("sleep 0.3", "sleep 1000"))
        self.assertIn("open for writing", self.error(LINGER="100ms"))

    # ---- the command's text

    def test_a_command_may_exceed_the_length_of_one_argument(self):
        self.script('local t = flow.shell("t", { args = { "s" }, outputs = { o = "o" }, command = [[\n'
                    "set -- {s}; echo $# > {outputs.o}; echo ${#1} ${0##*/}; ls -A\n"
                    "false | true\necho not reached ]] })", 'return t(("x"):rep(200000))')
        error = self.error()
        self.assertIn("exit code 1", error)  # -e and pipefail apply there too
        self.assertLess(len(error), 10000)
        self.assertIn("bytes more)", error)
        self.assertEqual(self.good("logs", "last", "t").out.split(), ["200000", "bash", "o"])

    def test_a_long_command_runs_under_another_shell(self):
        self.script('local t = flow.shell("t", { args = { "s" }, shell = { "sh", "-eu", "-c" }, command = [[\n'
                    "set -- {s}; echo ${#1} ]] })", 'return t(("x"):rep(140000)).stdout')
        self.assertEqual(self.result(), "140000\n")
        self.write("p.lua", self.read("p.lua").replace('"sh", "-eu", "-c"', '"%s", "-c"' % sys.executable))
        self.assertIn("is not a shell that reads it from a file", self.error())

    def test_an_argument_that_no_program_can_receive_is_an_error(self):
        self.script('local t = flow.shell("t", { args = { "s" }, command = [[ls {s}]] })',
                    'return t(("x"):rep(140000))')
        error = self.error()
        self.assertIn("arguments of a program are too long", error)
        self.assertLess(len(error), 10000)

    def test_a_plain_command_runs_as_in_bash(self):
        self.script('local a = flow.shell("a", { cache = false, command = "uname" })\n'
                    'local b = flow.shell("b", { cache = false, command = "uname;" })',
                    "return { a().stdout, b().stdout }")
        function = {"BASH_FUNC_uname%%": "() { echo mine; }"}
        self.write("start.sh", "uname() { echo from a file; }\n")
        for env, expected in ((function, "mine\n"), ({"BASH_ENV": self.path("start.sh")}, "from a file\n"),
                              ({}, os.uname().sysname + "\n")):
            with self.subTest(env):
                self.assertEqual(self.result(**env), [expected, expected])
        self.script('local a = flow.shell("a", { cache = false, command = "env" })\n'
                    'local b = flow.shell("b", { cache = false, command = "env;" })\n'
                    'local c = flow.shell("c", { shell = { "%s", "-c" }, command = "pass" })' % sys.executable,
                    "c() return { a().stdout, b().stdout }")
        plain, by_bash = self.result(SHLVL="3")
        differs = ("SHLVL=", "FLOW_TASK=", "FLOW_SLOT=", "PWD=", "OLDPWD=")

        def variables(text):
            return sorted(line for line in text.splitlines() if not line.startswith(differs))
        self.assertEqual(variables(plain), variables(by_bash))

    def test_redirections_work_as_in_bash(self):
        self.write("in.txt", "b\na\n")
        commands = [
            "sort < {f} > out", "sort {f} >out", "> 'out of it' > out sort {f}", "cat {f} - </dev/null >>out",
            "dd status=noxfer if={f} 2> out", "python3 -c {code} > out 2>&1", "python3 -c {code} 2>&1 > out",
            "tee out.1 < {f} > out.2", "tee out < {f} >&2", "printenv SHLVL > out", "cat < /proc/self/environ > out",
        ]
        tasks = []
        for command in commands:
            for end in ("", " ;"):  # executed directly, and by the shell
                tasks.append('flow.shell("t%d", { args = { "f", "code" }, cache = false, outputs = { out = "out*" }, '
                             'command = [[%s%s]] })' % (len(tasks), command, end))
        self.script("local f = flow.file(\"in.txt\")\nlocal code = \"import sys; print(1, file=sys.stderr); print(2)\"\nlocal t = {\n" + ",\n".join(tasks) + "}",
                    "local r = {}\nfor i = 1, #t do local d = t[i](f, code) r[i] = { d.stdout, d.out } end\nreturn r")
        results = self.result()
        for i, command in enumerate(commands):
            with self.subTest(command):
                self.assertEqual(results[2 * i], results[2 * i + 1])
                logs = [self.good("logs", "last", "t%d" % task).out for task in (2 * i, 2 * i + 1)]
                self.assertEqual(logs[0], logs[1])

    def test_a_command_with_a_redirection_needs_no_shell(self):
        self.shell("cat /proc/self/stat > out", 'outputs = { out = "out" },', part=".out")
        self.result()
        fields = self.copied("out").split()
        self.assertEqual(fields[0], fields[4])  # the program leads its process group

    def test_a_signal_ends_a_command_with_a_redirection_as_in_bash(self):
        for end in ("", " ;"):
            self.shell("%s -c 'import os; os.kill(os.getpid(), 11)' > out%s" % (sys.executable, end))
            self.assertIn("`t` ended with exit code 139, which a shell reports for signal 11", self.error())

    def test_the_shell_reports_a_redirection_that_fails(self):
        self.shell("cat /proc/self/stat > no/out")
        self.assertIn("exit code 1", self.error())
        self.assertIn("no/out: No such file or directory", self.good("logs", "last", "t").out)

    def test_a_redirection_to_a_fifo_does_not_block_the_executor(self):
        os.mkfifo(self.path("fifo"))
        self.shell("cat /proc/self/stat > %s" % self.path("fifo"), 'timeout = "1s", retries = 0,')
        self.assertIn("timeout", self.error())

    # ---- errors

    def test_errors_say_where_and_what_to_do(self):
        self.shell("echo text | no-such-program --version | cat")
        self.assertIn("p.lua:2: `t` ended with exit code 127: `no-such-program` is not on the PATH", self.error())
        self.shell("echo text | grep zzz | cat")
        self.assertIn("exit code 1, that of the last part of a pipe that failed (`pipefail`); `grep` ends with 1",
                      self.error())
        self.shell("echo 'a | b' || exit 3; exit 4")
        self.assertIn("p.lua:2: `t` ended with exit code 4\n", self.error())
        self.shell("kill -9 $$")
        self.assertIn("p.lua:2: `t` was killed by signal 9", self.error())
        self.script('local t = flow.task("t", { timeout = "300ms" }, function() while true do end end)', "return t()")
        done = self.exits(1, self.flow("run", "p.lua", "--grace", "0s"))
        self.assertIn("p.lua:2: `t` ran longer than its timeout of 300ms", done.out + done.err)

    def test_a_long_error_is_truncated(self):
        self.script('local t = flow.task("t", function() error(("x"):rep(10000000)) end)', "return t()")
        done = self.exits(1, self.flow("run", "p.lua"))
        self.assertLess(len(done.out + done.err), 100000)
        self.assertIn("bytes more)", done.err)
        self.write("p.lua", HEAD + 'error(("x"):rep(10000000))')
        done = self.exits(2, self.flow("run", "p.lua"))
        self.assertLess(len(done.out + done.err), 100000)

    # ---- outputs

    def names(self, outputs, command, call="{}"):
        self.shell(command, "outputs = { o = %s }," % outputs, call, ".o")
        value = self.result()
        return [each["$file"]["name"] for each in value] if isinstance(value, list) else value["$file"]["name"]

    def test_globs_of_outputs(self):
        made = "mkdir -p d/e .h inputs; touch d/f.t d/e/g.t top.t a.x a.y a.z .h/i.t .dot.t inputs/j.t; ln -s d linked"
        self.assertEqual(self.names('"**/*.t"', made), ["g.t", "f.t", "top.t"])  # d/e/g.t d/f.t top.t
        self.assertEqual(self.names('"d/**"', made), ["g.t", "f.t"])
        self.assertEqual(self.names('"*.{z,x}"', made), ["a.x", "a.z"])
        self.assertEqual(self.names('"{top,d/{f,none}}.t"', made), ["f.t", "top.t"])
        self.assertEqual(self.names('".*.t"', made), [".dot.t"])
        self.assertEqual(self.names('"d/"', made), "d")

    def test_a_name_with_wildcards_may_be_meant_literally(self):
        self.assertEqual(self.names('"a[1].txt"', "touch 'a[1].txt' a1.txt"), "a[1].txt")
        self.assertEqual(self.names('"a[1].txt"', "touch a1.txt"), ["a1.txt"])
        self.assertEqual(self.names('{ "a[1].txt", glob = false }', "touch {outputs.o} a1.txt"), "a[1].txt")
        self.shell("touch a1.txt", 'outputs = { o = { "a[1].txt", glob = false } },')
        self.assertIn("made no output `o`: nothing matches `a[1].txt`", self.error())
        self.shell("true; true", 'outputs = { o = { "a", glub = false } },')
        self.assertIn("unknown entry `glub`", self.result(2))

    def test_arguments_name_outputs(self):
        self.write("in put.csv", "data\n")
        self.script('local t = flow.shell("t", { args = { "sample", "file" }, '
                    'outputs = { o = "{sample}/{sample}.txt", logs = "{sample}.*.log", kept = "{{sample}}", '
                    'named = "{file}.gz" },\n'
                    "command = [[mkdir {sample}; echo {sample} > {outputs.o}; touch {sample}.1.log 's*.2.log' {outputs.kept}; "
                    "gzip < {file} > {outputs.named}]] })",
                    'local h = t("s*", flow.file("in put.csv")) return { h.o, h.logs, h.kept, h.named }')
        one, logs, kept, named = self.result()
        self.assertEqual([one["$file"]["name"], [log["$file"]["name"] for log in logs], kept["$file"]["name"],
                          named["$file"]["name"]], ["s*.txt", ["s*.1.log", "s*.2.log"], "{sample}", "in put.csv.gz"])

    def test_invalid_output_names_are_rejected_before_anything_runs(self):
        for outputs, call, words in (
                ('{ o = "{sampel}.txt" }', '{ sample = "a" }', "did you mean `{sample}`?"),
                ('{ o = "{sample}.txt" }', '{ sample = { "a" } }', "not a string, number, boolean or file"),
                ('{ o = "{sample}.txt" }', '{ sample = "../a" }', "it has the step `..`"),
                ('{ o = "{sample}", p = "a" }', '{ sample = "a" }', "have one path, `a`"),
                ('{ o = "{sample}" }', '{ sample = "" }', "it names no file")):
            with self.subTest(outputs):
                self.shell("echo {sample}; true", "outputs = %s," % outputs, call)
                self.assertIn(words, self.result(2))
        self.assertEqual(self.runs(), [])


if __name__ == "__main__":
    main()
