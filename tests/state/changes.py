#!/usr/bin/env python3
"""Changes between two runs, or during one: what runs again, and the messages about it."""
import os

import place

MODULE = "local m = {}\nfunction m.twice(n) return %s end\nreturn m\n"
SCRIPT = r'''
local flow = require "flow"
local m = require "helper"
local double = flow.task("double", { env = { MODE = "%(mode)s" }, seed = %(seed)s, cache = "%(salt)s" },
  function(ctx, n) return m.twice(n) end)
local read = flow.task("read", function(ctx, path)
  local file = io.open(path)
  local text = file:read("a")
  file:close()
  return #text
end)
local sum = flow.task("sum", function(ctx, a, b) return { total = a + b } end)
return flow.pipeline("changes", { n = flow.param.int { default = 2 }, file = flow.param.path { default = "in.txt" } },
  function(p) return sum(double(p.n), read(p.file)) end)
'''
PLAIN = {"mode": "a", "seed": "1", "salt": "s1"}
HELD = place.HOLD + r'''
local size = flow.shell("size", { args = { "file", "word" }, command = "wc -c < {file}; echo {word}" })
return flow.pipeline("held", { gate = flow.param.string {}, file = flow.param.path {} }, function(p)
  return size(p.file, hold(p.gate, "%s").stdout).stdout
end)
'''


CHECKS = r'''
local flow = require "flow"
local check = flow.shell("check", { args = { "f", "folder" }, outputs = { o = "o.txt" },
  command = [[grep -q good {f} && cat {f} {folder}/* > {outputs.o}]] })
return flow.pipeline("checks", { f = flow.param.path { default = "input.txt" }, folder = flow.param.path {} },
  function(p) return check(p.f, p.folder).o end)
'''
LISTS = '''
local flow = require "flow"
local list = flow.shell("list", { args = { "folder" },
  command = [[cd {folder}; for f in $(find -L . -type f | sort); do echo "$f $(cat "$f")"; done]] })
return flow.pipeline("lists", { folder = flow.param.path {} }, function(p) return list(p.folder).stdout end)
'''
SAMPLES = '''
local flow = require "flow"
local f = flow.task("f", { on_error = "ignore" }, function(ctx, p)
  local s = flow.fs.read(p)
  if s == "bad" then error("malformed") end
  return s
end)
local g = flow.task("g", function(ctx, l) return #l end)
return flow.pipeline("samples", {}, function()
  return g(flow.map(f, flow.files("in/*.txt"))%s)
end)
'''
BY_NAME = ":tag(function(x) return x.name end)"
NUMBERS = '''
local flow = require "flow"
local f = flow.task("f", function(ctx, n) return n * %d end)
return flow.pipeline("numbers", {}, function() return flow.map(f, { %s }) end)
'''

PASS = '''
local flow = require "flow"
local pass = flow.shell("pass", { args = { "x", "gate" },
  command = [[test {x} = one || while [ ! -e {gate} ]; do sleep 0.05; done; echo {x}]] })
return flow.pipeline("pass", { gate = flow.param.string {} }, function(p)
  return flow.map(pass, { %s }, p.gate):tag(function(x) return x end)
end)
'''

TAGGED = '''
local flow = require "flow"
local list = flow.task("list", function(ctx, n)
  if n == 1 then return { { s = "s1", v = 1 }, { s = "s2", v = 2 } } end
  return { { s = "s2", v = 22 }, { s = "s1", v = 11 } }
end)
local work = flow.task("work", function(ctx, it) return it.v end)
return flow.pipeline("tagged", { n = flow.param.int {}, only = flow.param.boolean { default = false } }, function(p)
  if p.only then return list(p.n) end
  return flow.map(work, list(p.n)):tag(function(it) return it.s end)
end)
'''


class Changes(place.Place):
    def setUp(self):
        super().setUp()
        self.script()
        self.write("in.txt", "four")

    def script(self, helper="n * 2", **words):
        self.write("helper.lua", MODULE % helper)
        self.write("pipeline.lua", SCRIPT % dict(PLAIN, **words))

    def ran(self):
        return sorted(n for n, t in self.tasks().items() if not t["cached"])

    def test_the_messages_about_changes(self):
        cases = (
            ("helper", lambda: self.script(helper="n + n + 1"), [], "double", ["twice"]),
            ("parameter", self.script, ["--param", "n=7"], "double", ["2", "7"]),
            ("content", lambda: self.write("in.txt", "fifth"), [], "read", ["changed"]),
            ("env", lambda: self.script(mode="b"), [], "double", ["MODE"]),
            ("seed", lambda: self.script(seed="2"), [], "double", ["seed", "`1`", "`2`"]),
            ("salt", lambda: self.script(salt="s2"), [], "double", ["s1", "s2"]),
        )
        for name, change, words, task, reported in cases:
            with self.subTest(name):
                self.script()
                self.write("in.txt", "four")
                self.good("run", ".", "--quiet")
                base = self.show()["run"]
                change()
                self.good("run", ".", "--quiet", *words)
                self.assertIn(task, self.ran())
                why, diff = self.good("why", "last", task).out, self.good("diff", base, "last").out
                for word in reported:
                    self.assertIn(word, why, name)
                    self.assertIn(word, diff, name)

    def test_the_changed_item_of_a_list_is_named(self):
        self.write("items.lua", r'''
local flow = require "flow"
local sum = flow.task("sum", function(ctx, items, text) return #items end)
local make = flow.task("make", function(ctx, change)
  local items = {}
  for i = 1, 6 do items[i] = { note = ("x"):rep(100), value = i * i } end
  if change == "item" then items[5].value = 36 end
  if change == "more" then items[7] = 102 end
  if change == "less" then items[6] = nil end
  return { items = items, text = ("y"):rep(200) .. change }
end)
return flow.pipeline("items", { change = flow.param.string {} }, function(p)
  local made = make(p.change)
  return sum(made.items, made.text)
end)
''')
        for change in ("none", "item", "more", "less"):
            self.good("run", "items.lua", "--quiet", "--param", "change=" + change)
        runs = [run["run"] for run in self.runs()]
        why = self.good("why", runs[1], "sum").out
        self.assertIn("argument `items`[5].value changed from `25` to `36`", why)
        self.assertIn("yyynone", why)
        self.assertIn("yyyitem", why)
        self.assertIn("argument `items` has 1 item more: `102` (from `make`)", self.good("diff", runs[0], runs[2]).out)
        self.assertIn("argument `items` has 2 items less: ", self.good("why", "last", "sum").out)

    def test_a_map_that_lost_an_item_is_reported_by_the_consumer_of_its_list(self):
        self.write("map.lua", r'''
local flow = require "flow"
local square = flow.task("square", function(ctx, n) return n * n end)
local sum = flow.task("sum", function(ctx, items) return flow.table.sum(items) end)
return flow.pipeline("map", { n = flow.param.int {} }, function(p)
  local items = {}
  for i = 1, p.n do items[i] = i end
  return sum(flow.map(square, items))
end)
''')
        for n in (3, 2, 2):
            self.good("run", "map.lua", "--quiet", "--param", "n=%d" % n)
        runs = [run["run"] for run in self.runs()]
        self.assertEqual(self.show(runs[1])["result"], 5)
        why = self.good("why", runs[1], "sum").out
        self.assertIn("argument `items` has 1 item less: `9` (from `square`)", why)
        self.assertNotIn("changed from", why)
        self.assertNotIn("less", self.good("why", runs[2], "sum").out)

    def samples(self, tag, **contents):
        os.makedirs(self.path("in"), exist_ok=True)
        for name, content in contents.items():
            self.write("in/%s.txt" % name, content)
        self.write("samples.lua", SAMPLES % tag)

    def test_instances_of_a_map_are_compared_by_tag(self):
        self.samples(BY_NAME, b="b", c="bad", d="d")
        self.good("run", "samples.lua")
        self.samples(BY_NAME, a="a", c="bad")
        plan = self.good("plan", "samples.lua").out
        self.assertIn("it did not succeed in the run", plan)
        self.assertIn("no earlier run has it", plan)
        self.assertNotIn("changed", plan)
        self.good("run", "samples.lua")
        before, now = [run["run"] for run in self.runs()]
        diff = self.good("diff", before, now).out
        self.assertIn("`f[a.txt]` is only in %s\n" % now, diff)
        self.assertNotIn("`f[c.txt]`", diff)
        self.assertNotIn("only in " + before, diff)
        self.assertIn("3 tasks are the same", diff)
        self.assertIn("`f[a.txt]` is only in %s\n" % now, self.good("diff", now, before).out)
        self.assertIn("because it did not succeed in the run %s" % before, self.good("why", now, "f[c.txt]").out)
        self.assertIn("no earlier run of this pipeline", self.good("why", now, "f[a.txt]").out)

    def test_a_plan_compares_instances_by_tags_of_a_function(self):
        self.write("tagged.lua", TAGGED)
        self.good("run", "tagged.lua", "--param", "n=1")
        self.good("run", "tagged.lua", "--param", "n=2", "--param", "only=true")  # the list is in the cache
        plan = self.good("plan", "tagged.lua", "--param", "n=2", "--verbose").out
        self.good("run", "tagged.lua", "--param", "n=2")
        for tag, change in (("s1", "from `1` to `11`"), ("s2", "from `2` to `22`")):
            self.assertIn(change, self.good("why", "last", "work[%s]" % tag).out)
            self.assertIn(change, plan)

    def test_untagged_instances_of_a_map_are_compared_by_key_and_then_by_item(self):
        runs = []
        for factor, items in ((2, "5, 6, 7"), (2, "4, 5, 6, 7"), (3, "5, 6, 7"), (3, "5, 8, 7")):
            self.write("numbers.lua", NUMBERS % (factor, items))
            planned = self.good("plan", "numbers.lua").out
            self.good("run", "numbers.lua")
            runs.append(self.show()["run"])
        diff = self.good("diff", runs[0], runs[1]).out
        self.assertEqual(diff, "`f[1]` is only in %s\n3 tasks are the same\n" % runs[1])
        diff = self.good("diff", runs[1], runs[2]).out
        self.assertIn("`f[1]` is only in %s\n0 tasks" % runs[1], diff)
        self.assertIn("`f[1..3]` (3 tasks):\n  its function changed", diff)
        self.assertNotIn("argument", diff)
        self.assertIn("argument `n` changed from `6` to `8`", planned)
        self.assertIn("argument `n` changed from `6` to `8`", self.good("why", "last", "f[2]").out)

    def test_a_resume_with_new_code_pairs_instances_by_tag(self):
        def script(*items):
            self.write("pass.lua", PASS % ", ".join('"%s"' % item for item in items))

        script("one", "two")
        run = self.start("run", "pass.lua", "--jobs", "1", "--param", "gate=" + self.path("gate"))
        self.until("the first sample", lambda: "succeeded" in str(self.tasks()) if self.runs() else False)
        self.kill(run)
        self.open("gate")
        script("new", "one", "two")
        done = self.good("resume", "--code", "new")
        self.assertIn("will run: it has not run yet", done.out)
        self.assertNotIn("changed from", done.out)

    def test_a_comment_reruns_nothing_and_an_equal_result_cuts_off(self):
        self.good("run", ".")
        self.write("pipeline.lua", "-- said anew\n" + self.read("pipeline.lua"))
        self.good("run", ".")
        self.assertEqual(self.ran(), [])
        self.script(helper="n + n")  # the same result in another way
        self.good("run", ".")
        self.assertEqual(self.ran(), ["double"])
        self.good("run", ".", "--fresh")
        self.assertEqual(self.ran(), ["double", "read", "sum"])

    def test_resuming_a_succeeded_run_prints_its_object_and_a_retry_runs_again(self):
        self.good("run", ".")
        before = self.show()
        self.assertEqual(self.good("resume", "last", "--json").lines()[-1], before)
        self.good("retry", "last", "double")
        after = self.show()
        self.assertEqual(after["run"], before["run"])
        self.assertEqual(after["result"], before["result"])
        attempts = {t["name"]: t["attempts"] for t in after["tasks"]}
        self.assertEqual((attempts["double"], attempts["read"]), (2, 1))

    def held(self, path, word="one"):
        self.write("held.lua", HELD % word)
        run = self.start("run", "held.lua", "--param", "gate=" + self.path("gate"), "--param", "file=" + path)
        self.until_holds(word)
        return run

    def test_resume_keeps_the_code_and_a_small_file_of_the_run(self):
        self.write("small.txt", "12345")
        self.kill(self.held("small.txt"))
        self.write("small.txt", "123456789")
        self.write("held.lua", HELD % "two")
        self.open("gate")
        done = self.good("resume")
        self.assertIn("--code new", done.out + done.err)
        self.assertEqual(self.show()["result"], "5\none\n\n")

    def test_code_new_keeps_the_parameters_and_uses_the_new_code(self):
        self.write("small.txt", "12345")
        self.kill(self.held("small.txt"))
        self.write("held.lua", HELD % "two")
        self.open("gate")
        self.good("resume", "--code", "new")
        self.assertEqual(self.show()["result"], "5\ntwo\n\n")

    def test_links_in_a_folder_are_files_or_are_rejected(self):
        self.write("lists.lua", LISTS)
        for folder in ("in/below", "out"):
            os.makedirs(self.path(folder))
        self.write("in/a", "A")
        self.write("in/below/b", "B")
        self.write("out/c", "C")
        os.symlink("a", self.path("in/inside"))
        os.symlink("../../out/c", self.path("in/below/outside"))
        words = ("run", "lists.lua", "--param", "folder=" + self.path("in"))
        self.good(*words)
        listed = self.show()["result"].split("\n")[:-1]
        self.assertEqual(listed, ["./a A", "./below/b B", "./below/outside C", "./inside A"])
        self.write("out/c", "other")
        self.good(*words)
        self.assertIn("./below/outside other", self.show()["result"])
        os.symlink("../out", self.path("in/folder"))
        self.good(*words)
        self.assertIn("./folder/c other", self.show()["result"])
        os.remove(self.path("in/folder"))
        os.mkfifo(self.path("in/below/pipe"))
        self.exits(2, self.flow(*words), "`below/pipe`")
        os.remove(self.path("in/below/pipe"))
        os.symlink("nowhere", self.path("in/dangling"))
        self.exits(2, self.flow(*words), "dangling")

    def test_a_broken_link_is_rejected_as_a_file_parameter(self):
        os.symlink("nowhere", self.path("dangling"))
        os.symlink("round", self.path("round"))
        reported = {"dangling": "the parameter `file` names `%s`, a symbolic link to `nowhere`, which does not exist",
                "round": "the parameter `file` names `%s`, a symbolic link to `round`, which leads back to it"}
        for name, words in reported.items():
            with self.subTest(name):
                self.exits(2, self.flow("run", ".", "--param", "file=" + name), words % self.path(name))
        self.assertEqual(self.runs(), [])
        self.write("nowhere", "it is there")
        self.good("run", ".", "--param", "file=dangling")
        self.assertEqual(self.show()["result"], {"total": 4 + len("it is there")})

    def test_a_large_file_that_changes_during_a_run_fails_it(self):
        self.open("large.bin")
        os.truncate(self.path("large.bin"), 65 << 20)
        run = self.held("large.bin")
        with open(self.path("large.bin"), "r+b") as file:
            file.write(b"changed")
        self.open("gate")
        self.exits(1, self.end(run), "input changed")
        self.exits(1, self.flow("resume"), "input changed")
        self.good("run", "held.lua", "--param", "gate=" + self.path("gate"), "--param", "file=large.bin")
        self.assertFalse(self.tasks()["size"]["cached"])

    def test_a_repaired_input_is_reported_and_used_with_new_code(self):
        self.write("checks.lua", CHECKS)
        self.write("input.txt", "bad\n")
        os.mkdir(self.path("folder"))
        self.write("folder/one", "1\n")
        run = ("run", "checks.lua", "--param", "folder=folder")
        self.exits(1, self.flow(*run), "--code new")
        os.utime(self.path("input.txt"), (1e9, 1e9))
        self.assertNotIn("differs", self.exits(1, self.flow("resume")).err)
        self.write("input.txt", "good\n")
        for words in (["resume"], ["retry", "last", "check"]):
            with self.subTest(words):
                done = self.exits(1, self.flow(*words), "`input.txt` differs", "--code new` uses the new content")
                self.assertNotIn("folder", done.err.split("differs")[0].splitlines()[-1])
        self.write("folder/one", "2\n")
        self.exits(1, self.flow("resume"), "`input.txt`, `folder` differ")
        self.good("resume", "--code", "new")
        self.good("get", "last", "-o", "out")
        self.assertEqual(self.read("out/o.txt"), "good\n2\n")
        self.assertNotIn("differ", self.good("resume").err)

    def test_a_large_input_that_changed_is_not_reported_as_kept(self):
        self.write("checks.lua", CHECKS)
        self.write("input.txt", "bad\n")
        os.mkdir(self.path("folder"))
        with open(self.path("folder/large"), "wb") as large:
            large.truncate((64 << 20) + 1)
        self.exits(1, self.flow("run", "checks.lua", "--param", "folder=folder"), "check")
        for change, why in ((lambda: self.write("folder/large", "2\n"), "input changed"),
                            (lambda: os.unlink(self.path("folder/large")), "cannot read the input")):
            change()
            done = self.exits(1, self.flow("resume"), "`folder` differs", "are read in place and not copied",
                              why, "--code new` uses the current content")
            self.assertNotIn("continues with the content", done.err)
        self.write("folder/large", "2\n")
        self.write("input.txt", "good\n")
        self.good("resume", "--code", "new")
        self.good("get", "last", "-o", "out")
        self.assertEqual(self.read("out/o.txt"), "good\n2\n")

    def test_a_removed_input_keeps_its_stored_bytes(self):
        self.write("checks.lua", CHECKS)
        self.write("input.txt", "bad\n")
        os.mkdir(self.path("folder"))
        self.write("folder/one", "1\n")
        self.exits(1, self.flow("run", "checks.lua", "--param", "folder=folder"))
        os.unlink(self.path("folder/one"))
        os.rmdir(self.path("folder"))
        self.write("input.txt", "good\n")
        self.good("resume", "--code", "new")
        self.good("get", "last", "-o", "out")
        self.assertEqual(self.read("out/o.txt"), "good\n1\n")


if __name__ == "__main__":
    place.main()
