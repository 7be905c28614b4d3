#!/usr/bin/env python3
"""Tags: where they are shown, where they name a task, their rules, and when a tag function is called.

usage: tags.py --flow BIN [TEST...]
"""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

HEAD = r'''
local flow = require "flow"
local align = flow.shell("align", { args = { "s" }, outputs = { bam = "out.bam" },
  command = [[echo of {s}; test ! -e FOLDER/bad-{s}; echo {s} > {outputs.bam}]] })
local list = flow.task("list", function() return { { sample = "s1", n = 1 }, { sample = "s2", n = 2 } } end)
local work = flow.task("work", function(ctx, item) ctx:log("on %d", item.n) return item.n end)
local text = flow.task("text", function(ctx, path) return flow.fs.read(path) end)
'''


class Tags(Place):
    def script(self, body, head=""):
        self.write("pipeline.lua", (HEAD + head).replace("FOLDER", self.folder) +
                   'return flow.pipeline("tags", {}, function(p)\n%s\nend)\n' % body)

    def names(self):
        return {task["name"]: task["tag"] for task in self.show()["tasks"]}

    def test_a_tag_is_shown_and_names_its_task(self):
        self.script('''local a, b = align("x"):tag("s1"), align("y"):tag("s2")
        return { text(a.bam), text(b.bam) }''')
        done = self.good("run", ".")
        self.assertIn("align[s2]: started", done.out)
        self.assertEqual(self.names(), {"align": "s1", "align#2": "s2", "text": None, "text#2": None})
        self.assertIn("align[s2]  succeeded", " ".join(self.good("show").out.split()).replace(" succeeded", "  succeeded"))
        self.assertEqual(self.good("logs", "last", "align[s2]").out, "of y\n")
        self.assertEqual(self.good("logs", "last", "align[s2]@1").out, "of y\n")
        self.assertIn("align[s2] | of y", self.good("logs", "last").out)
        self.assertEqual([(l["task"], l["tag"]) for l in self.good("logs", "last", "align[s2]", "--json").lines()],
                         [("align#2", "s2")])
        self.assertIn("`align[s2]` succeeded", self.good("why", "last", "align[s2]").out)
        self.assertIn("`align[s2]` succeeded", self.good("why", "last", "align#2").out)
        self.exits(0, self.flow("retry", "last", "align[s2]"))
        self.assertEqual((self.tasks()["align"]["attempts"], self.tasks()["align#2"]["attempts"]), (1, 2))
        done = self.exits(2, self.flow("logs", "last", "align[s3]"), "has no task `align[s3]`", "did you mean")
        events = [e for e in self.good("run", ".", "--fresh", "--json").lines() if e.get("event") == "task"]
        self.assertEqual({e["task"]: e.get("tag") for e in events},
                         {"align": "s1", "align#2": "s2", "text": None, "text#2": None})

    def test_messages_name_a_failed_task_by_its_tag(self):
        self.open("bad-y")
        self.script('''local m = flow.map(align, { "x", "y" }):tag(function(s) return "sample " .. s end)
        return text(m[1].bam)''')
        done = self.exits(1, self.flow("run", "."), "`align[sample y]` failed")
        self.assertEqual(self.names(), {"align[1]": "sample x", "align[2]": "sample y", "text": None})
        self.assertIn("it depends on `align`", self.tasks()["text"]["error"])
        self.assertIn("align[sample y]: failed", done.out)

    BROKEN = r'''
local quits = flow.shell("quits", { args = { "n" }, command = "exit {n}" })
local makes_none = flow.shell("makes_none", { args = { "n" }, outputs = { o = "o" }, command = "echo {n}" })
local odd = flow.task("odd", function(ctx, n) return print end)
local slow = flow.shell("slow", { args = { "n" }, timeout = "1s", command = "sleep 100{n}" })
local dies = flow.task("dies", function(ctx, n) os.execute("kill -9 $PPID") end)
'''

    def test_errors_of_attempts_name_the_tag(self):
        texts = {"quits": "`quits[s7]` ended with exit code 7", "makes_none": "`makes_none[s7]` made no output `o`",
                 "odd": "odd[s7] returned a function", "slow": "`slow[s7]` ran longer than its timeout",
                 "dies": "the process of `dies[s7]` was killed by signal 9"}
        calls = ", ".join("flow.map(%s, numbers()):tag(function(n) return 's' .. n end)" % name for name in texts)
        self.script("return { %s }" % calls,
                    self.BROKEN + 'local numbers = flow.task("numbers", function() return { 7 } end)\n')
        for words in ([], ["--workers", "1"]):
            self.exits(1, self.flow("run", ".", "--fresh", *words))
            errors = {task["name"]: task["error"] for task in self.show()["tasks"]}
            for name, text in texts.items():
                self.assertIn(text, errors[name + "[1]"])

    def test_a_function_tags_the_items_of_a_list_in_the_script(self):
        self.script('''local items = { { sample = "a", bam = align("x").bam }, { sample = "b", bam = align("y").bam } }
        return flow.map(take, items):tag(function(item) return item.sample end):limit(1)''',
                    'local take = flow.task("take", function(ctx, item) return flow.fs.read(item.bam) end)\n')
        self.good("run", ".")
        self.assertEqual(self.show()["result"], ["x\n", "y\n"])
        self.assertEqual((self.names()["take[1]"], self.names()["take[2]"]), ("a", "b"))

    def test_a_function_tags_the_items_of_a_handle_once(self):
        self.script("return flow.map(work, list()):tag(function(item) return item.sample end)")
        done = self.good("run", ".")
        self.assertEqual(self.show()["result"], [1, 2])
        self.assertEqual((self.names()["work[1]"], self.names()["work[2]"]), ("s1", "s2"))
        self.assertIn("work[s2]: started", done.out)
        self.assertEqual(self.good("logs", "last", "work[s2]").out, "on 2\n")
        self.good("resume")
        self.assertEqual(self.names()["work[2]"], "s2")
        self.good("retry", "last", "work[s2]")
        self.assertEqual((self.names()["work[2]"], self.tasks()["work[2]"]["attempts"]), ("s2", 2))
        # Another tag does not change the key.
        self.write("pipeline.lua", self.read("pipeline.lua").replace("return item.sample end)", "return 'x' .. item.n end)"))
        self.good("run", ".")
        self.assertEqual((self.names()["work[2]"], self.tasks()["work[2]"]["cached"]), ("x2", True))

    def planned(self, *words):
        return {line["name"]: line["tag"] for line in self.good("plan", ".", *words, "--json").lines()}

    def test_a_plan_and_a_graph_show_tags(self):
        self.script('''local a, b = align("x"), align("y"):tag("s2")
        return { text(b.bam), flow.map(align, { "v", "w" }):tag(function(s) return "sample " .. s end) }''')
        self.assertEqual(self.planned(), {"align": None, "align#2": "s2", "text": None,
                                          "align#3[1]": "sample v", "align#3[2]": "sample w"})
        plan = self.good("plan", ".").out
        self.assertRegex(plan, r"(?m)^runs +align, align\[s2\], align\[sample v\] and 1 more +4 tasks: no earlier run has it$")
        self.assertIn("waits for `align[s2]`", plan)
        nodes = json.loads(self.good("graph", ".", "--format", "json").out)["nodes"]
        self.assertEqual({node["name"]: node["tag"] for node in nodes},
                         {"align": None, "align#2": "s2", "text": None, "align#3": None})
        self.assertIn('"align#2" [shape=box, label="align[s2]"];', self.good("graph", ".").out)
        self.assertIn('"align[s2]"', self.good("graph", ".", "--format", "mermaid").out)

    def test_a_plan_shows_the_tags_of_the_items_of_a_handle(self):
        self.script("return flow.map(work, list()):tag(function(item) return item.sample end)")
        self.assertEqual(self.planned(), {"list": None, "work": None})
        self.good("run", ".")
        tagged = {"list": None, "work[1]": "s1", "work[2]": "s2"}
        self.assertEqual(self.planned(), tagged)
        self.write("pipeline.lua", self.read("pipeline.lua").replace("item.sample", "item.sample .. 'new'"))
        self.assertEqual(self.planned(), {"list": None, "work[1]": "s1new", "work[2]": "s2new"})
        # A function that fails, or gives one tag twice, leaves the names without tags.
        for body in ("error('no')", "'same'"):
            self.write("pipeline.lua", self.read("pipeline.lua").replace("item.sample .. 'new'", body))
            self.assertEqual(self.planned(), dict.fromkeys(tagged))

    def test_the_preview_of_new_code_shows_tags(self):
        self.open("bad-y")
        body = '''local m = flow.map(align, { "x", "y" }):tag(function(s) return "sample " .. s end)
        return { m, flow.map(work, list()):tag(function(item) return item.sample end) }'''
        self.script(body)
        self.exits(1, self.flow("run", "."))
        os.remove(self.path("bad-y"))
        self.write("pipeline.lua", self.read("pipeline.lua").replace("ctx:log(", "ctx:log('now ' .. "))
        lines = self.good("resume", "--code", "new", "--json").lines()
        plan = {line["task"]: (line.get("tag"), line["status"]) for line in lines if line.get("event") == "plan"}
        self.assertEqual(plan, {"align[1]": ("sample x", "cached"), "align[2]": ("sample y", "runs"),
                                "list": (None, "cached"), "work[1]": ("s1", "runs"), "work[2]": ("s2", "runs")})

    def test_tags_survive_a_killed_engine_without_another_call(self):
        self.script('''return flow.map(held, list()):tag(function(item) return item.sample end)''',
                    '''local held = flow.shell("held", { outputs = { o = "o" },
          command = [[echo {sample} {n} >> FOLDER/gate.started; while [ ! -e FOLDER/gate ]; do sleep 0.05; done; touch {outputs.o}]] })
        ''')
        process = self.start("run", ".", "--jobs", "2")
        self.until_holds("s2")
        self.kill(process)
        self.assertEqual((self.names()["held[1]"], self.names()["held[2]"]), ("s1", "s2"))
        self.open("gate")
        self.good("resume")
        self.assertEqual((self.names()["held[1]"], self.names()["held[2]"]), ("s1", "s2"))

    def test_an_error_of_a_function_fails_the_map(self):
        for body, words in (('error("no name for " .. item.n)', ["pipeline.lua:", "no name for 1"]),
                            ("return item.n", ["the tag of `work[1]` is a string"]),
                            ('return "a/b"', ["`a/b` can't be the tag of `work[1]`: it has `/`"]),
                            ('return "same"', ["the tag `same` of `work[2]` is already that of `work[1]`"]),
                            ("while true do end", ["took longer than 1 s"])):
            with self.subTest(body):
                self.script("return flow.map(work, list()):tag(function(item) %s end)" % body)
                self.exits(1, self.flow("run", "."), *words)
                self.assertEqual(self.tasks()["work"]["status"], "failed")

    def test_rules_are_errors_while_building(self):
        for body, words in (('return align("x"):tag("3")', ["`3` can't be the tag of `align`: it has only digits"]),
                            ('return align("x"):tag("a@b")', ["it has `@`"]),
                            ('return align("x"):tag(7)', ["is a string such as \"s3\", not an integer"]),
                            ('return align("x"):tag("a"):tag("b")', ["`align` has a tag already"]),
                            ('return { align("x"):tag("a"), align("y"):tag("a") }',
                             ["the tag `a` of `align#2` is already that of `align`"]),
                            ('return { align("x"):tag("a"), flow.map(align, { "z" }):tag(function() return "a" end) }',
                             ["the tag `a` of `align#2[1]` is already that of `align`"]),
                            ('return flow.map(align, { "x" }):tag("a")', ["`:tag` takes a function"]),
                            ('return flow.map(align, { "x" }):tag(function(s) return align(s) end)', ["calls a task"]),
                            ('return flow.map(align, { align("x").bam }):tag(function(s) return s end)', ["not a handle"]),
                            ('return align("x").tag', ["write h:tag(…)"])):
            with self.subTest(body):
                self.script(body)
                self.exits(2, self.flow("run", "."), "pipeline.lua:", *words)

    def files(self, folder):
        return sorted(os.path.relpath(os.path.join(at, name), self.path(folder))
                      for at, _, names in os.walk(self.path(folder)) for name in names)

    def test_files_are_copied_to_folders_named_by_tags(self):
        head = '''local both = flow.task("both", function(ctx, s)
          flow.fs.write(ctx.dir .. "/a.txt", s) flow.fs.write(ctx.dir .. "/b.txt", s)
          return { best = { ctx:file("a.txt") }, other = ctx:file("b.txt") }
        end)
        '''
        self.script('''local tagged = flow.map(align, { "x", "y" }):tag(function(s) return "sample " .. s end)
        local plain = flow.map(align, { "z", "w" })
        return { bams = tagged:each("bam"), first = tagged[1], plain = plain, one = align("v"):tag("s3").bam,
                 flat = align("u").bam, deep = both("x"):tag("x"), part = both("y"):tag("y").best[1] }''', head)
        self.good("run", ".", "--out", "out")
        expected = ["align/s3/out.bam", "align/sample x/out-2.bam", "align/sample x/out.bam",
                    "align/sample y/out.bam", "align#2/1/out.bam", "align#2/2/out.bam", "both/x/best/1/a.txt",
                    "both/x/other/b.txt", "both/y/best/1/a.txt", "out.bam", "result.json"]
        self.assertEqual(self.files("out"), sorted(expected))
        self.assertEqual(self.read("out/align/sample y/out.bam"), "y\n")
        self.assertEqual(self.read("out/align#2/2/out.bam"), "w\n")
        result = json.loads(self.read("out/result.json"))
        self.assertEqual([f["$file"]["path"] for f in result["bams"]],
                         ["align/sample x/out.bam", "align/sample y/out.bam"])
        self.assertEqual(result["one"]["$file"]["path"], "align/s3/out.bam")
        self.good("get", "last", "-o", "again")
        self.assertEqual(self.files("again"), self.files("out"))
        self.good("get", "last", "one", "-o", "part")
        self.assertEqual(self.files("part"), ["out.bam"])

    def test_the_folders_do_not_shift_if_a_sample_fails(self):
        self.open("bad-x")
        self.script('''return flow.map(align, { "x", "y" }):tag(function(s) return s end):each("bam")''')
        self.write("pipeline.lua", self.read("pipeline.lua").replace('{ args', '{ on_error = "ignore", args'))
        self.good("run", ".", "--out", "out")
        self.assertEqual(self.files("out"), ["align/y/out.bam", "result.json"])

    def test_tags_of_sub_pipelines_and_dynamic_tasks(self):
        self.script('''return { sub {}, sub {}, search("x"):tag("top") }''',
                    '''local sub = flow.pipeline("sub", {}, function() return text(align("x"):tag("s1").bam) end)
        local search = flow.dynamic("search", function(ctx, s) return text(align(s):tag("s1").bam) end)
        ''')
        self.good("run", ".")
        names = self.names()
        self.assertEqual([names[n] for n in ("sub/align", "sub#2/align", "search", "search/align")],
                         ["s1", "s1", "top", "s1"])
        self.assertEqual(self.good("logs", "last", "sub/align[s1]").out, "of x\n")


if __name__ == "__main__":
    main()
