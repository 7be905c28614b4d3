#!/usr/bin/env python3
"""Rules for every verb: its help, invalid arguments, valid JSON, errors of one paragraph.

usage: verbs.py --flow BIN [TEST...]
"""
import json
import os
import re
import shlex
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, Place, main  # noqa: E402

SCRIPT = r'''
local flow = require "flow"
local say = flow.shell("say", { args = { "word" }, outputs = { text = "text.txt" },
  command = "echo {word}; echo {word} > {outputs.text}" })
local fails = flow.task("fails", function(ctx, word) if word == "bad" then error("a bad word") end return word end)
local ask = flow.task("ask", function(ctx, word)
  ctx:metric("length", #word)
  if word == "ask" then return ctx:wait("go") end
  return word
end)
return flow.pipeline("verbs", { word = flow.param.string { default = "hello" } }, function(p)
  return { said = say(p.word), word = fails(p.word), asked = ask(p.word) }
end)
'''

# A valid command line for each verb that prints JSON.
LINES = {
    "run": ["run", "."],
    "resume": ["resume"],
    "retry": ["retry", "last", "say"],
    "ls": ["ls"],
    "show": ["show"],
    "get": ["get"],
    "logs": ["logs"],
    "why": ["why"],
    "diff": ["diff", "last", "last"],
    "metrics": ["metrics"],
    "compare": ["compare", "last", "last"],
    "cost": ["cost"],
    "advise": ["advise"],
    "graph": ["graph", "."],
    "export": ["export", "--format", "wfformat", "-o", "run.json"],
    "import": ["import", "workflow.json", "-o", "made"],
    "report": ["report", "-o", "run.html"],
    "trace": ["trace", "-o", "trace.json"],
    "top": ["top"],
    "lint": ["lint", "."],
    "plan": ["plan", "."],
    "gc": ["gc"],
    "doctor": ["doctor"],
    "init": ["init", "new"],
}
# The others print one document.
LINE_A_THING = {"run", "retry", "ls", "logs", "metrics", "compare", "lint", "plan", "doctor", "init"}
# tests/cluster/cluster.py tests those of a cluster
NO_JSON = {"repl", "completion", "head", "worker", "nodes"}
WHEN_IT_RUNS = {"cancel", "signal", "serve", "deploy", "rollback", "stop", "services",  # the last five: services.py
                "ui"}  # tests/page
NEEDS = {"run": "FILE|DIR", "retry": "RUN", "serve": "RUN", "deploy": "RUN", "rollback": "NAME", "stop": "RUN", "cancel": "RUN", "signal": "RUN",
         "diff": "RUN", "compare": "RUN",
         "graph": "FILE|RUN", "lint": "FILE|DIR", "plan": "FILE|DIR", "init": "DIR", "completion": "SHELL", "import": "FILE"}
WRONG = {
    "run": ["run", "nothing.lua"],
    "resume": ["resume", "nobody"],
    "retry": ["retry", "last", "nothing"],
    "serve": ["serve", "last"],
    "deploy": ["deploy", "last"],
    "rollback": ["rollback", "nobody"],
    "stop": ["stop", "last"],
    "cancel": ["cancel", "last"],
    "signal": ["signal", "last", "go", "{"],
    "show": ["show", "nobody"],
    "get": ["get", "last", "nothing"],
    "logs": ["logs", "last", "say@7"],
    "why": ["why", "last", "nothing"],
    "diff": ["diff", "last", "nobody"],
    "metrics": ["metrics", "last", "nothing"],
    "compare": ["compare", "last", "nobody"],
    "cost": ["cost", "nobody"],
    "advise": ["advise", "nobody"],
    "graph": ["graph", "nobody"],
    "export": ["export", "nobody", "--format", "wfformat", "-o", "nothing.json"],
    "import": ["import", "pipeline.lua", "-o", "made"],
    "report": ["report", "nobody", "-o", "nothing.html"],
    "trace": ["trace", "nobody", "-o", "nothing.json"],
    "top": ["top", "nobody"],
    "lint": ["lint", "nothing.lua"],
    "plan": ["plan", ".", "--param", "wort=1"],
    "gc": ["gc", "--keep", "all"],
    "init": ["init", "."],
}


class Verbs(Place):
    def setUp(self):
        super().setUp()
        self.write("pipeline.lua", SCRIPT)
        self.write("workflow.json", json.dumps({"name": "w", "schemaVersion": "1.5", "workflow": {"specification": {"tasks": [
            {"id": "one", "name": "one", "parents": []}]}}}))

    def verbs(self):
        text = self.good("--help").out.split("Subcommands:")[1]
        return re.findall(r"^  ([a-z]+) ", text, re.MULTILINE)

    def is_wrong(self, done, *words):
        """Checks for an error of one paragraph, and nothing on stdout."""
        self.exits(2, done, *words)
        self.assertEqual(done.out, "", done)
        self.assertTrue(done.err.startswith("error: "), done)
        self.assertNotIn("\n\n", done.err.strip(), done)

    def test_every_verb_is_covered(self):
        self.assertEqual(set(self.verbs()), set(LINES) | NO_JSON | WHEN_IT_RUNS)

    def test_help_names_every_option(self):
        for verb in self.verbs():
            with self.subTest(verb):
                done = self.good(verb, "--help")
                self.assertEqual(done.err, "")
                for word in ("Usage: flow " + verb, "--state", "--json", NEEDS.get(verb, "")):
                    self.assertIn(word, done.out)

    def test_an_invalid_option_is_named(self):
        for verb in self.verbs():
            with self.subTest(verb):
                self.is_wrong(self.flow(verb, "--stat"), "--stat", "--state", "flow %s --help" % verb)

    def test_a_parameter_file_has_a_size_limit(self):
        params_max = 64 << 20
        text = '{"word": "of the file"'
        self.write("params.json", text + " " * (params_max - len(text) - 1) + "}")
        self.good("run", ".", "--params", "params.json")
        self.assertEqual(self.show()["params"]["word"], "of the file")
        runs = self.runs()
        with open(self.path("params.json"), "a") as file:
            file.write(" ")
        done = self.flow("run", ".", "--params", "params.json")
        self.is_wrong(done, "--params: `params.json` has more than 64 MiB", "give large data as a file parameter")
        self.assertEqual(self.runs(), runs)

    def test_a_script_whose_name_begins_with_a_dash_follows_two_dashes(self):
        self.write("-x.lua", """local flow = require "flow"
local one = flow.task("one", function(ctx, n) return n + 1 end)
return flow.pipeline("dashed", { n = flow.param.int {} }, function(p) return one(p.n) end)
""")
        self.good("run", "--param", "n=1", "--", "-x.lua")
        self.assertEqual((self.show()["pipeline"], self.show()["result"]), ("dashed", 2))
        self.is_wrong(self.flow("run", "--param", "n=1", "-x.lua"), "-x")
        self.exits(0, self.flow("plan", "--param", "n=1", "--", "-x.lua"), "1 node")

    def test_a_missing_argument_is_named(self):
        for verb in self.verbs():
            if verb in NEEDS:
                with self.subTest(verb):
                    self.is_wrong(self.flow(verb), "`flow %s` needs %s" % (verb, NEEDS[verb]))

    def test_json_is_valid(self):
        self.good("run", ".", "--quiet")
        for verb, line in LINES.items():
            with self.subTest(verb):
                lines = self.good(*line, "--json").lines()
                if verb not in LINE_A_THING:
                    self.assertEqual(len(lines), 1)
        last = self.good("run", ".", "--json").lines()[-1]
        self.assertEqual(last, self.show())
        self.assertEqual(self.good("run", ".", "--json", "--quiet").lines(), [self.show()])
        self.assertEqual([line["run"] for line in self.runs()][-1], self.show()["run"])
        self.assertEqual(self.good("get", "last", "-o", "out", "--json").lines(),
                         [{"path": "out/text.txt"}, {"path": "out/result.json"}])

    def test_a_signal_that_no_task_waits_for_is_kept_with_a_warning(self):
        run = self.start("run", ".", "--json", "--param", "word=ask", "--name", "early")
        self.until_waits("ask", "early")
        done = self.good("signal", "early", "goo", "1")
        self.assertIn("no task of the run %s waits for the signal `goo` now." % self.show()["run"], done.err)
        self.assertIn("Did you mean `go`?", done.err)
        self.assertTrue(done.out.startswith("sent `goo` to "), done)
        self.assertEqual(self.good("signal", "early", "go").err, "")
        self.exits(0, self.end(run))

    def test_json_of_a_waiting_run(self):
        run = self.start("run", ".", "--json", "--param", "word=ask")
        self.until_waits("ask")
        self.assertEqual(self.good("signal", "last", "go", "--json").lines(),
                         [{"run": self.show()["run"], "signal": "go"}])
        self.assertEqual(self.exits(0, self.end(run)).lines()[-1]["result"]["asked"], True)
        run = self.start("run", ".", "--json", "--param", "word=ask", "--name", "again")
        self.until_waits("ask", "again")
        self.assertEqual(self.good("cancel", "again", "--json").lines(),
                         [{"run": self.show()["run"], "status": "cancelled"}])
        self.assertEqual(self.exits(1, self.end(run)).lines()[-1]["status"], "cancelled")

    def test_errors_with_json_are_paragraphs_too(self):
        self.good("run", ".", "--quiet")
        for verb, line in WRONG.items():
            with self.subTest(verb):
                self.is_wrong(self.flow(*line, "--json"))
        done = self.exits(1, self.flow("run", ".", "--json", "--param", "word=bad"), "a bad word")
        self.assertEqual(done.lines()[-1]["status"], "failed")
        self.assertEqual(done.lines()[-1]["result"]["word"], None)
        self.assertTrue(done.err.startswith("error: `fails` failed"), done)

    def test_the_fields_of_a_list_of_runs(self):
        self.assertEqual(self.good("ls", "--json").out, "")
        self.write("plain.lua", 'local flow = require "flow"\nlocal one = flow.task("one", function() return 1 end)\n'
                   'return flow.pipeline("plain", {}, function() return one() end)\n')
        self.good("run", "plain.lua")
        self.exits(1, self.flow("run", ".", "--param", "word=bad"))
        plain, failed = self.runs()
        self.assertEqual((plain["params"], plain["result"], plain["status"]), ({}, 1, "succeeded"))
        self.assertEqual((failed["params"], failed["result"]["word"], failed["status"]), ({"word": "bad"}, None, "failed"))
        self.assertNotIn("tasks", plain)
        whole = self.show(plain["run"])
        self.assertEqual({key: value for key, value in whole.items() if key not in ("tasks", "usage")}, plain)

    def test_a_name_that_cannot_be_printed_or_typed_is_rejected(self):
        for name in ("a\nb\x1b[31m", "tab\t", "\x7f", "c1\u009b31m"):
            with self.subTest(name):
                self.is_wrong(self.flow("run", ".", "--name", name), "a run can't be named", "no control characters")
        self.is_wrong(self.flow("run", ".", "--name", "last"), "a run can't be named `last`")
        self.is_wrong(self.flow("run", ".", "--name", "20261121-051700-3fk3f9x"), "reads as the id")
        self.assertEqual(self.runs(), [])
        for name in ("nächste", "2026", "a b", "last one"):
            self.good("run", ".", "--name", name)
            self.assertEqual(self.show(name)["name"], name)

    def test_a_writer_rejects_an_invalid_name_from_another_process(self):
        run = self.start("run", ".", "--param", "word=ask")
        self.until_waits("ask")
        self.is_wrong(self.flow("run", ".", "--name", "a\nb"), "a run can't be named", "no control characters")
        self.good("signal", "last", "go")
        self.exits(0, self.end(run))

    def test_script_output_does_not_control_the_terminal(self):
        self.write("steers.lua", SCRIPT.replace("a bad word", r"a \27[31mbad\rword \u{9b}31m"))
        done = self.exits(1, self.flow("run", "steers.lua", "--param", "word=bad"), r"a \x1b[31mbad\x0dword \u009b31m")
        looks = [self.good(*line) for line in (["show"], ["why"], ["ls"], ["why", "last", "fails"])]
        for each in [done, *looks]:
            self.assertNotRegex(each.out + each.err, r"[\x00-\x08\x0b-\x1f\x80-\x9f]", each)
        self.assertRegex(self.tasks()["fails"]["error"], "\x1b\\[31mbad\rword \x9b31m")

    def test_a_state_that_is_not_a_folder_is_named_by_every_verb(self):
        self.write("file", "")
        for state in ("/dev/null", "file"):
            for verb, line in LINES.items():
                if verb in ("graph", "import", "lint", "init"):  # they read no state
                    continue
                with self.subTest(state + " " + verb):
                    done = self.exits(4, self.flow(*line, "--state", state))
                    self.assertEqual(done.err, "error: the state `%s` is not a folder: name another with --state DIR or "
                                     "FLOW_STATE\n" % self.path(state))
        self.exits(4, self.flow("ls", FLOW_STATE="file"), "is not a folder")
        self.write(".flow", "")
        self.exits(4, self.flow("run", "."), "is not a folder")

    def test_why_reports_that_a_task_ran_only_if_it_did(self):
        run = self.start("run", ".", "--param", "word=ask")
        self.until_waits("ask")
        waits = self.good("why", "last", "ask").out
        self.assertRegex(waits, r"\A`ask` waits: .*\n\Z")
        self.good("signal", "last", "go")
        self.exits(0, self.end(run))
        ran = self.good("why", "last", "ask").out
        self.assertRegex(ran, r"\A`ask` succeeded in .*\nIt ran because no earlier run .*\n\Z")

        self.write("hold.lua", HOLD + 'return flow.pipeline("h", {}, function() return hold("%s", "h") end)\n'
                   % self.path("gate"))
        run = self.start("run", "hold.lua", "--name", "first")
        self.until_holds("h")
        self.assertRegex(self.good("why", "last", "hold").out,
                         r"\A`hold` is running: .*\nIt runs because no earlier run .*\n\Z")
        self.kill(run)
        self.open("gate")
        self.good("run", "hold.lua", "--name", "second")
        self.good("resume", "first")
        task = self.tasks("first")["hold"]
        self.assertEqual((task["cached"], task["attempts"]), (True, 1))
        self.assertEqual(self.good("why", "first", "hold").out,
                         "`hold` did not run: an earlier result with the same key was used, of the run %s.\n"
                         % self.show("second")["run"])

    def test_why_logs_and_show_take_a_task_of_the_last_run(self):
        self.write("map.lua", """
local flow = require "flow"
local echo = flow.shell("echo", { args = { "x" }, command = "echo {x}" })
return flow.pipeline("m", {}, function() return { flow.map(echo, { "a", "b" }), echo("c") } end)
""")
        self.good("run", "map.lua", "--name", "named")
        run = self.show()["run"]
        for task in ("echo", "echo[2]"):
            first = "`%s` of the last run, %s:\n" % (task, run)
            self.assertEqual(self.good("why", task).out, first + self.good("why", "last", task).out)
            self.assertEqual(self.good("show", task).out, first + self.good("show", "last", task).out)
            self.assertEqual(self.good("why", task, "--json").out, self.good("why", "last", task, "--json").out)
        self.assertEqual(self.good("logs", "echo[2]").out, "b\n")

        def names(*words):
            return [task["name"] for task in self.good("show", *words, "--json").lines()[0]["tasks"]]
        self.assertEqual(names("echo"), ["echo[1]", "echo[2]"])
        self.assertEqual((names("echo#2"), names("named", "echo[2]")), (["echo#2"], ["echo[2]"]))
        self.exits(2, self.flow("show", "last", "echo[3]"), "the run %s has no task `echo[3]`" % run)
        for verb in ("why", "logs", "show"):
            self.is_wrong(self.flow(verb, "ecko"), "there is no run `ecko`, and the last run, %s, has no task `ecko`. "
                          "Did you mean `echo`?" % run, "`flow ls`", "`flow show`")

    def test_the_name_of_a_run_wins_over_that_of_a_task(self):
        self.good("run", ".", "--name", "first")
        self.good("run", ".", "--name", "say", "--param", "word=other")
        run = self.show()["run"]
        self.assertTrue(self.good("why", "say").out.startswith("The run %s " % run))
        self.assertEqual(len(self.show("say")["tasks"]), 3)
        self.assertTrue(self.good("why", "ask").out.startswith("`ask` of the last run, %s:\n" % run))
        self.assertTrue(self.good("why", run[:-1]).out.startswith("The run %s " % run))

    def test_help_lists_the_parameters_of_a_script(self):
        self.write("params.lua", """
local flow = require "flow"
return flow.pipeline("p", {
  lr = flow.param.number { default = 0.5, min = 0, max = 1, help = "learning rate" },
  names = flow.param.list { of = "string", default = { "a", "b" } },
  data = flow.param.path { help = "a folder" },
  mode = flow.param.choice { "fast", "exact", default = "fast" },
}, function(p) error("the body does not run") end)
""")
        for line in (["run", "params.lua", "--help"], ["plan", "--help", "params.lua"], ["graph", "params.lua", "--help"]):
            out = self.good(*line).out
            verb = line[0]
            usage, parameters = out.split("Parameters of the pipeline, for --param NAME=VALUE:\n")
            self.assertIn("Usage: flow %s" % verb, usage)
            self.assertEqual([line.split(None, 1) for line in parameters.splitlines()],
                             [["data", "path            a folder; required"],
                              ["lr", "number          learning rate; 0 to 1; default: 0.5"],
                              ["mode", "choice          one of fast, exact; default: fast"],
                              ["names", "list of string  default: a,b"]])
        self.write("none.lua", 'return require "flow".pipeline("n", {}, function() end)')
        self.assertIn("The pipeline of none.lua has no parameters.", self.good("run", "none.lua", "--help").out)
        self.write("broken.lua", "local flow = require 'flow'\nreturn flow.pipelin('n')")
        for script, error in (("nothing.lua", "`nothing.lua`"), ("broken.lua", "broken.lua:2: flow has no `pipelin`")):
            done = self.exits(2, self.flow("run", script, "--help"), error)
            self.assertTrue(done.out.startswith("run a pipeline to its end\nUsage: flow run"), done)
            self.assertTrue(done.err.startswith("error: "), done)
        for verb in ("run", "plan", "graph"):
            self.assertIn("With --help the standard input is not read", self.good(verb, "-", "--help").out)
        self.assertNotIn("Parameters", self.good("graph", "last", "--help").out)
        self.assertFalse(os.path.exists(self.path(".flow")))

    def test_git_ignores_a_state_wherever_it_lies(self):
        self.good("run", ".", "--state", "sub/state")
        with open(self.path("sub/state/.gitignore")) as file:
            self.assertEqual(file.read(), "*\n")

    def test_show_has_one_line_for_a_task_that_waits_for_its_next_attempt(self):
        self.write("again.lua", '''
local flow = require "flow"
local again = flow.shell("again", { retries = { max = 1, backoff = "1h" }, command = [[echo one >&2; echo two >&2; exit 9]] })
return flow.pipeline("again", {}, function() return again {} end)
''')
        run = self.start("run", "again.lua")
        self.until_waits("again")
        wait = self.tasks()["again"]["waits_for"]
        self.assertRegex(wait, r"\Aits attempt 1 failed \(.*exit code 9.*\); the next starts at [^\n]*\Z")
        self.assertEqual([line for line in self.good("show").out.splitlines() if line.startswith("again  ")],
                         ["again  waiting    " + wait])
        self.assertIn("two", self.good("why", "last", "again").out)
        self.kill(run)
        self.assertIn("again  waiting    its run was interrupted: `flow resume", self.good("show").out)

    def test_the_hint_that_sends_a_signal_is_a_line_for_the_shell(self):
        self.write("ask.lua", r'''
local flow = require "flow"
local ask = flow.task("ask", function(ctx) return ctx:wait("it's on; go") end)
return flow.pipeline("ask", {}, function() return ask() end)
''')
        run = self.start("run", "ask.lua")
        self.until_waits("ask")
        line = re.search(r"`(flow signal .*)` sends it", self.good("why", "last", "ask").out)[1]
        words = shlex.split(line)
        self.assertEqual(words, ["flow", "signal", self.show()["run"], "it's on; go"])
        self.good(*words[1:])
        done = self.exits(0, self.end(run), "ask: waits for the signal `it's on; go`: ")
        hint = re.search(r"`: (flow signal .*)", done.out)[1]
        self.assertEqual(shlex.split(hint), words)

    def test_why_of_a_second_attempt_shows_its_start_and_the_end_of_the_first(self):
        self.write("again.lua", r'''
local flow = require "flow"
local again = flow.task("again", { retries = { max = 1, backoff = "50ms" } }, function(ctx)
  if ctx.attempt == 1 then error("no luck", 0) end
  return ctx:wait("go")
end)
local runs = flow.shell("runs", { args = { "gate" }, retries = { max = 1, backoff = "50ms" },
  command = [[echo once >> {gate}.tries; [ $(wc -l < {gate}.tries) = 2 ] || exit 7
    echo runs > {gate}.started; while [ ! -e {gate} ]; do sleep 0.05; done]] })
return flow.pipeline("again", { gate = flow.param.string {} }, function(p) return { runs(p.gate), again() } end)
''')
        run = self.start("run", "again.lua", "--json", "--param", "gate=" + self.path("gate"))
        self.until_holds("runs")
        self.until_waits("again")
        why = self.good("why", "last", "runs").out
        since = re.match(r"`runs` is running: attempt 2 since ([^ ]*)\.\nAttempt 1 failed: exit_code: .*7", why)
        self.assertTrue(since, why)
        self.assertEqual(since[1], self.tasks()["runs"]["started"])
        self.open("gate")
        self.good("signal", "last", "go")
        done = self.exits(0, self.end(run))
        ended = [line for line in done.lines() if line.get("event") == "task" and line["status"] == "succeeded"]
        self.assertEqual(sorted((line["task"], line.get("error")) for line in ended), [("again", None), ("runs", None)])
        self.assertRegex(self.good("why", "last", "again").out,
                         r"\A`again` succeeded in 3 attempts\.\nAn attempt before failed: user_error: no luck\nIt ran")
        self.assertRegex(self.good("why", "last", "runs").out,
                         r"\A`runs` succeeded in 2 attempts\.\nAttempt 1 failed: exit_code: .*7")
        self.assertEqual({name: task["error"] for name, task in self.tasks().items()}, {"runs": None, "again": None})

    def test_why_of_a_map_describes_its_tasks(self):
        self.write("map.lua", r"""
local flow = require "flow"
local mk = flow.task("mk", function(ctx, i, worst) assert(i <= worst) return i end)
local list = flow.task("list", function() return {} end)
return flow.pipeline("m", { worst = flow.param.int {}, n = flow.param.int {} }, function(p)
  local items = {}
  for i = 1, p.n do items[i] = i end
  return { flow.map(mk, items, 5), flow.map(mk, items, p.worst), flow.map(mk, list()),
           flow.when(list()[1], function() return 1 end) }
end)
""")

        def why(task):
            return self.good("why", "last", task).out
        self.good("run", "map.lua", "--param", "n=2", "--param", "worst=6")
        first = self.show()["run"]
        self.assertEqual(why("mk"), "`mk` is a map of 2 tasks: 2 succeeded.\n\n`mk[1,2]`: 2 tasks, each succeeded in 1 attempt.\n"
                         "It ran because no earlier run of this pipeline in this state has it.\n")
        self.assertEqual(why("mk#3"), "`mk#3` is a map of an empty list: it has no tasks.\n")
        self.assertEqual(why("when"), "`when` is a flow.when: it took its second branch.\n")
        self.exits(1, self.flow("run", "map.lua", "--param", "n=3", "--param", "worst=2"))
        self.assertEqual(why("mk"), "`mk` is a map of 3 tasks: 2 cached, 1 succeeded.\n\n`mk[3]` succeeded in 1 attempt.\n"
                         "It ran because no earlier run of this pipeline in this state has it.\n")
        text = why("mk#2")
        self.assertTrue(text.startswith("`mk#2` is a map of 3 tasks: 2 succeeded, 1 failed.\n\n`mk#2[1,2]`: 2 tasks, each "
                                        "succeeded in 1 attempt.\nIt ran again because, since the run %s:\n  argument `worst` "
                                        "changed from `6` to `2`\n\n`mk#2[3]` failed.\ncause: " % first), text)

    def test_a_branch_whose_value_cannot_be_read_is_one_of_the_failed(self):
        self.write("part.lua", '''local flow = require "flow"
local t = flow.task("t", function(ctx, x) return x end)
return flow.pipeline("part", {}, function() return flow.when(t(true), function() return t({}).a.b end) end)
''')
        done = self.exits(1, self.flow("run", "part.lua"), "`when` failed: a part of the result of `t#2` is missing")
        self.assertRegex(done.out, r"failed: 3 tasks: 0 cached, 2 ran, 0 retried, 1 failed; ")
        counts = {name: count for name, count in self.show()["counts"].items() if count > 0}
        self.assertEqual(counts, {"succeeded": 2, "failed": 1})
        self.assertEqual({name: task["status"] for name, task in self.tasks().items()},
                         {"t": "succeeded", "t#2": "succeeded", "when": "failed"})

    def test_a_plan_reports_what_a_run_would_be_rejected_for(self):
        self.write("needs.lua", '''local flow = require "flow"
local t = flow.shell("t", { resources = { fpga = 1 }, gpus = 2, env = { T = flow.env("NOT_SET_HERE") }, command = "true" })
return flow.pipeline("needs", {}, function() return t().stdout end)
''')
        refused = "a run with these options is rejected: needs.lua:2: the task `t` "
        done = self.exits(0, self.flow("plan", "needs.lua"), refused + "asks for fpga = 1", refused + "needs the environment",
                          "1 node: 0 cached, 1 to run")
        # A plan checks no GPUs, because it may run on another machine.
        self.assertNotIn("gpus", done.err)
        done = self.exits(0, self.flow("plan", "needs.lua", "--resource", "fpga=1", NOT_SET_HERE="1"), "1 to run")
        self.assertNotIn("refused", done.err)
        self.exits(0, self.flow("plan", "needs.lua", "--on", "slurm", "--nodes", "1", "--gpus-per-node", "1"),
                   refused + "asks for fpga = 1, and each node of Slurm has no such resource",
                   refused + "asks for gpus = 2, and each node of Slurm has --gpus-per-node 1")

    def test_a_plan_creates_no_state(self):
        self.write("large", "x" * 100_000)
        self.write("reads.lua", 'local flow = require "flow"\n'
                   'local count = flow.shell("count", { args = { "file" }, command = "wc -c {file}" })\n'
                   'return flow.pipeline("reads", { file = flow.param.path {} },\n'
                   '  function(p) return count { file = p.file }.stdout end)\n')
        before = sorted(os.listdir(self.folder))
        self.good("plan", ".")
        self.exits(0, self.flow("plan", "reads.lua", "--param", "file=large"), "no earlier run has it", "1 node: 0 cached")
        self.assertEqual(sorted(os.listdir(self.folder)), before)
        self.assertEqual(os.listdir(self.env["TMPDIR"]), [])
        self.good("run", "reads.lua", "--param", "file=large")
        self.exits(0, self.flow("plan", "reads.lua", "--param", "file=large"), "1 node: 1 cached")
        self.write("large", "y" * 100_000)
        self.exits(0, self.flow("plan", "reads.lua", "--param", "file=large"), "1 node: 0 cached, 1 to run")
        self.assertEqual(os.listdir(self.env["TMPDIR"]), [])

    def contents(self):
        """The size and time of each file in the state."""
        found = {}
        for folder, _, names in os.walk(self.state):
            for name in names:
                info = os.lstat(os.path.join(folder, name))
                found[os.path.join(folder, name)] = (info.st_size, info.st_mtime_ns)
        return found

    def test_a_missing_state_is_an_error_and_is_not_created(self):
        missing = self.path("typo")
        for words in (["gc"], ["retry", "last"], ["resume"], ["cancel", "last"], ["signal", "last", "go"], ["show"], ["get"], ["logs"],
                      ["why"], ["diff", "last", "last"], ["graph", "last"]):
            done = self.exits(2, self.flow(*words, "--state", missing), missing, "flow run")
            self.assertEqual(done.out, "", words)
            self.assertFalse(os.path.exists(missing), words)
        for words in (["ls"], ["nodes"], ["doctor"], ["plan", "."]):
            self.flow(*words, "--state", missing)
            self.assertFalse(os.path.exists(missing), words)

    def test_a_plan_changes_nothing_in_a_state(self):
        self.good("run", ".")
        before = self.contents()
        self.exits(0, self.flow("plan", "."), "3 nodes: 3 cached")
        self.exits(0, self.flow("plan", ".", "--param", "word=other"), "3 nodes: 0 cached, 3 to run")
        self.assertEqual(self.contents(), before)

    def test_a_plan_during_a_run_sees_what_the_writer_has_finished(self):
        run = self.start("run", ".", "--param", "word=ask")
        self.until_waits("ask")
        held = self.read(".flow/lock")
        self.exits(0, self.flow("plan", ".", "--param", "word=ask"), "3 nodes: 2 cached, 1 to run")
        self.assertEqual(self.read(".flow/lock"), held)
        self.good("signal", "last", "go")
        self.exits(0, self.end(run))


if __name__ == "__main__":
    main()
