#!/usr/bin/env python3
"""The log of flow itself: its options, its lines, what is rejected, and that nothing is logged by default.

usage: log.py --flow BIN [TEST...]
"""
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, Place, main  # noqa: E402

SCRIPT = r'''
local flow = require "flow"
local tries = flow.task("tries", { retries = { max = 2, backoff = "0s" } }, function(ctx, good)
  if ctx.attempt < good then error("no luck\nat all") end
  return ctx.attempt
end)
return flow.pipeline("tries", { good = flow.param.int { default = 1 } }, function(p) return tries(p.good) end)
'''
SECRET = r'''
local flow = require "flow"
local leaks = flow.shell("leaks", { env = { TOKEN = flow.env("TOKEN") }, command = "echo $TOKEN >&2; exit 3" })
return flow.pipeline("leaks", {}, function() return leaks().stdout end)
'''
HOLDS = HOLD + r'''
return flow.pipeline("holds", { gate = flow.param.string {} }, function(p) return hold(p.gate, "one").stdout end)
'''
LOGGED = {"run", "resume", "retry", "serve", "deploy", "rollback", "gc", "head", "worker"}
KEYS = ["time", "level", "message", "run", "task", "attempt", "worker", "detail"]
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (trace|debug|info |warning|error) \S.*")


class Log(Place):
    def setUp(self):
        super().setUp()
        self.write("p.lua", SCRIPT)

    def objects(self, text):
        lines = [json.loads(line) for line in text.splitlines()]
        for line in lines:
            self.assertEqual(list(line), [key for key in KEYS if key in line], line)
            self.assertTrue({"time", "level", "message"} <= set(line), line)
        return lines

    def messages(self, text):
        return [line["message"] for line in self.objects(text)]

    def test_each_verb_that_runs_tasks_has_the_log_options(self):
        verbs = re.findall(r"^  ([a-z]+) ", self.good("--help").out.split("Subcommands:")[1], re.MULTILINE)
        for verb in verbs:
            text = self.good(verb, "--help").out
            for option in "--log-level", "--log-file", "--log-format":
                self.assertEqual(option in text, verb in LOGGED, (verb, option))

    def test_nothing_is_logged_by_default(self):
        before = set(os.listdir(self.folder))
        self.assertEqual(self.good("run", "p.lua", "--quiet").err, "")
        self.assertEqual(set(os.listdir(self.folder)) - before, {".flow"})

    def test_a_run_leaves_one_line_per_event_in_its_file(self):
        done = self.good("run", "p.lua", "--name", "first", "--quiet", "--log-file", "flow.log")
        self.assertEqual(done.err, "")
        lines = self.read("flow.log").splitlines()
        for line in lines:
            self.assertRegex(line, LINE)
        run = self.show()["run"]
        for end in ("info  engine started detail=", "info  run submitted run=%s detail=first" % run,
                    "info  run ended run=%s detail=succeeded" % run, "info  engine stopped"):
            self.assertEqual(len([line for line in lines if end in line]), 1, (end, lines))
        self.good("run", "p.lua", "--name", "second", "--quiet", "--log-file", "flow.log")
        self.assertEqual(self.read("flow.log").splitlines()[:len(lines)], lines)

    def test_lines_go_to_standard_error_as_json(self):
        done = self.good("run", "p.lua", "--quiet", "--log-level", "debug", "--log-format", "json")
        messages = self.messages(done.err)
        for message in "engine started", "run submitted", "attempt assigned", "attempt succeeded", "run ended", "engine stopped":
            self.assertEqual(messages.count(message), 1, messages)
        self.assertEqual(self.good("run", "p.lua", "--quiet", "--log-level", "error").err, "")
        self.assertEqual(self.good("run", "p.lua", "--quiet", "--log-level", "off", "--log-file", "none.log").err, "")

    def test_each_retry_and_each_failure_leaves_one_line(self):
        log = ("--quiet", "--log-file", "flow.log", "--log-format", "json")
        self.good("run", "p.lua", "--param", "good=3", *log)
        lines = self.objects(self.read("flow.log"))
        retried = [line for line in lines if line["message"] == "attempt failed, task is retried"]
        run = self.show()["run"]
        self.assertEqual([(line["run"], line["task"], line["attempt"], line["worker"], line["level"]) for line in retried],
                         [(run, "tries", 1, "local", "info"), (run, "tries", 2, "local", "info")])
        for line in retried:
            self.assertRegex(line["detail"], r"^user_error: .*no luck$")
        os.remove(self.path("flow.log"))
        self.exits(1, self.flow("run", "p.lua", "--param", "good=9", *log))
        lines = self.objects(self.read("flow.log"))
        failed = [(line["task"], line["attempt"], line["level"]) for line in lines if line["message"] == "task failed"]
        self.assertEqual(failed, [("tries", 3, "warning")])
        os.remove(self.path("flow.log"))
        self.exits(1, self.flow("retry", "last", "tries", *log))
        lines = self.objects(self.read("flow.log"))
        resumed = [line["detail"] for line in lines if line["message"] == "run resumed"]
        self.assertRegex(resumed[0], r"^retry of tries by .+@.+$")
        self.assertEqual(len(resumed), 1)

    def test_a_garbage_collection_and_its_snapshot_leave_one_line_each(self):
        self.good("run", "p.lua")
        done = self.good("gc", "--keep", "0", "--log-file", "flow.log", "--log-format", "json")
        self.assertEqual(done.err, "")
        lines = self.objects(self.read("flow.log"))
        messages = [line["message"] for line in lines]
        self.assertEqual([messages.count(each) for each in ("garbage collected", "snapshot written")], [1, 1], messages)
        detail = [line["detail"] for line in lines if line["message"] == "garbage collected"][0]
        self.assertRegex(detail, r"^\d+ bytes freed, the newest 0 finished runs kept$")

    def test_a_failed_commit_leaves_one_line(self):
        self.write("holds.lua", HOLDS)
        run = self.start("run", "holds.lua", "--param", "gate=" + self.path("gate"), "--log-file", "flow.log", "--log-format", "json")
        self.until_holds("one")
        # As if the state had been replaced.
        os.rename(os.path.join(self.state, "lock"), os.path.join(self.state, "former"))
        self.open("gate")
        self.exits(4, self.end(run), "was removed or replaced")
        failed = [line for line in self.objects(self.read("flow.log")) if line["level"] == "error"]
        self.assertEqual([line["message"] for line in failed], ["commit failed, the engine stops"])
        self.assertIn("was removed or replaced", failed[0]["detail"])

    def test_invalid_options_are_rejected_before_anything_is_written(self):
        os.mkdir(self.path("folder"))
        os.mkfifo(self.path("pipe"))
        for words, code, texts in [
            (("--log-level", "loud"), 2, ["--log-level takes", "`loud`"]),
            (("--log-level", "info", "--log-format", "xml"), 2, ["--log-format takes `text` or `json`", "`xml`"]),
            (("--log-format", "json"), 2, ["--log-format sets the format of log lines", "--log-file"]),
            (("--log-file", ""), 2, ["--log-file needs a value"]),
            (("--log-file", "folder"), 2, ["the log file `folder` is a folder"]),
            (("--log-file", "pipe"), 2, ["the log file `pipe` is not a regular file"]),
            (("--log-file", "/dev/null"), 2, ["the log file `/dev/null` is not a regular file"]),
            (("--log-file", ".flow/flow.log"), 2, ["the log file `.flow/flow.log` is in `%s`" % self.state]),
            (("--log-file", "none/flow.log"), 4, ["cannot write the log file `none/flow.log`", "No such file"]),
        ]:
            with self.subTest(words):
                done = self.exits(code, self.flow("run", "p.lua", *words), *texts)
                self.assertEqual(done.out, "")
                self.assertTrue(done.err.startswith("error: "), done)
                self.assertFalse(os.path.exists(self.state))

    def test_secrets_are_redacted(self):
        self.write("s.lua", SECRET)
        token = 'very"secret\\value'
        for form in "text", "json":
            name = form + ".log"
            done = self.flow("run", "s.lua", "--name", "the " + token, "--log-file", name, "--log-format", form, TOKEN=token)
            self.exits(1, done)
            text = self.read(name)
            self.assertIn("the ***", text)
            for part in 'very', 'secret', "value":
                self.assertNotIn(part, text)

    def test_a_secret_is_redacted_before_the_line_is_cut(self):
        self.write("s.lua", r'''
local flow = require "flow"
local gives = flow.task("gives", { env = { TOKEN = flow.env("TOKEN") } }, function() return os.getenv("TOKEN") end)
local fails = flow.task("fails", function(ctx, token) error(token:rep(100)) end)
return flow.pipeline("s", {}, function() return fails(gives()) end)
''')
        self.exits(1, self.flow("run", "s.lua", "--quiet", "--log-file", "flow.log", TOKEN="one-s3cret-of-many-bytes"))
        text = self.read("flow.log")
        self.assertIn("*" * 100, text)
        for part in "one-", "s3cret":
            self.assertNotIn(part, text)

    def test_a_full_disk_does_not_stop_a_run(self):
        name = self.path("flow.log")
        with open(name, "wb") as file:
            file.truncate(9 << 20)  # larger than the file size limit; the state's files are smaller
        done = self.end(self.start("run", "p.lua", "--quiet", "--log-file", name,
                                   before=("bash", "-c", 'ulimit -f 9216; exec "$0" "$@"')))
        self.exits(0, done)
        self.assertEqual(os.path.getsize(name), 9 << 20)
        self.assertRegex(done.err, r"\Aflow: lines of the log `%s` are dropped: .*File too large\n\Z" % re.escape(name))


if __name__ == "__main__":
    main()
