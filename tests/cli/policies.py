#!/usr/bin/env python3
"""Failure policies: `on_error = "ignore"`, `flow.missing`, and what a run with ignored failures prints.

usage: policies.py --flow BIN [TEST...]
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

# `qc` fails for each sample that a file of its name names.
HEAD = r'''
local flow = require "flow"
local folder = "FOLDER"
local qc = flow.shell("qc", { args = { "s" }, on_error = "ignore", outputs = { o = "o.txt" },
  command = [[test ! -e FOLDER/bad-{s}; echo {s} > {outputs.o}]] })
local align = flow.shell("align", { args = { "o" }, outputs = { bam = "a.bam" },
  command = [[cat {o} > {outputs.bam}; echo again >> FOLDER/aligned]] })
local merge = flow.shell("merge", { args = { "files" }, outputs = { all = "all.txt" },
  command = [[cat {files} > {outputs.all}]] })
local text = flow.task("text", function(ctx, path) return flow.fs.read(path) end)
local what = flow.task("what", function(ctx, ...)
  local names = {}
  for i, x in ipairs { ... } do
    names[i] = x == flow.missing and "missing" or x == flow.null and "null" or type(x)
  end
  return names
end)
'''


class Policies(Place):
    def script(self, body, head=""):
        self.write("pipeline.lua", HEAD.replace("FOLDER", self.folder) + head +
                   'return flow.pipeline("policies", {}, function(p)\n%s\nend)\n' % body)

    def bad(self, *samples):
        self.open(*["bad-" + sample for sample in samples])

    def result(self, body, *words, code=0, head=""):
        self.script(body, head)
        self.exits(code, self.flow("run", ".", *words))
        return self.show()["result"]

    def test_a_map_goes_on_with_the_survivors(self):
        self.bad("b")
        body = 'return text(merge(flow.map(qc, { "a", "b", "c" }):each("o")).all)'
        self.assertEqual(self.result(body), "a\nc\n")
        run = self.show()
        self.assertEqual(run["status"], "succeeded")
        self.assertEqual((run["counts"]["succeeded"], run["counts"]["failed"], run["counts"]["ignored"]), (4, 1, 1))
        failed = self.tasks()["qc[2]"]
        self.assertEqual((failed["status"], failed["ignored"]), ("failed", True))
        self.assertIn("ended with exit code 1", failed["error"])
        self.assertFalse(self.tasks()["qc[1]"]["ignored"])

    def test_an_index_of_a_map_is_a_survivor_and_places_are_kept_on_request(self):
        self.bad("a")
        body = '''local m = flow.map(qc, { "a", "b", "c" })
        local places = m:results { missing = "null" }
        return { first = text(m[1].o), kinds = what(places[1], places[2], m:results { missing = "omit" }),
                 list = places, all = m }'''
        result = self.result(body)
        self.assertEqual((result["first"], result["kinds"]), ("b\n", ["null", "table", "table"]))
        self.assertEqual([item is None for item in result["list"]], [True, False, False])
        self.assertEqual(len(result["all"]), 2)

    def test_a_list_without_survivors_is_empty(self):
        self.bad("a", "b")
        body = 'local m = flow.map(qc, { "a", "b" }) return { n = what(m), m = m }'
        self.assertEqual(self.result(body), {"n": ["table"], "m": []})

    def test_a_list_of_a_handle_leaves_failed_items_out(self):
        self.bad("b")
        head = 'local list = flow.task("list", function() return { "a", "b", "c" } end)\n'
        self.assertEqual(self.result('return text(merge(flow.map(qc, list()):each("o")).all)', head=head), "a\nc\n")

    def test_a_lua_task_gets_missing_and_a_shell_task_is_skipped(self):
        self.bad("b")
        body = '''local bad = qc("b")
        local bam = align(bad.o)
        return { bad = bad, bam = bam.bam, direct = what(bad, bad.o, bam, bam.bam, 1), in_a_table = what({ bad }) }'''
        result = self.result(body)
        self.assertEqual(result, {"bad": None, "bam": None, "in_a_table": ["table"],
                                  "direct": ["missing", "missing", "missing", "missing", "number"]})
        tasks = self.tasks()
        self.assertEqual(tasks["align"]["status"], "skipped")
        self.assertEqual(tasks["align"]["error"],
                         "one of its arguments is flow.missing: `qc` failed, and its failure is ignored")
        self.assertEqual(self.show()["counts"]["skipped"], 1)
        self.assertIn("its failure is ignored", self.good("why", "last", "qc").out)
        self.assertIn("was skipped", self.good("why", "last", "align").out)

    def test_a_map_over_missing_items_leaves_out_what_was_skipped(self):
        self.bad("b")
        body = '''local items = { qc("a").o, qc("b").o, qc("c").o }
        local bams = flow.map(align, items)
        return text(merge(bams:each("bam")).all)'''
        self.assertEqual(self.result(body), "a\nc\n")
        self.assertEqual(self.tasks()["align[2]"]["status"], "skipped")

    def test_a_missing_condition_is_false_and_a_failed_one_still_skips_both_branches(self):
        self.bad("b")
        head = '''local fails = flow.task("fails", function() error("it breaks") end)
        local yes = flow.task("yes", function() return "yes" end)
        local no = flow.task("no", function() return "no" end)
        '''
        body = 'return flow.when(qc("b"), function() return yes() end, function() return no() end)'
        self.assertEqual(self.result(body, head=head), "no")
        body = 'return flow.when(fails(), function() return yes() end, function() return no() end)'
        self.assertIsNone(self.result(body, code=1, head=head))

    def test_order_without_data_waits_for_the_end_only(self):
        self.bad("b")
        self.assertEqual(self.result('return text(qc("a"):after(qc("b")).o)'), "a\n")

    def test_retries_come_first_and_timeouts_are_ignored_too(self):
        head = '''local slow = flow.shell("slow", { on_error = "ignore", timeout = "100ms", retries = { max = 1, backoff = "0s" },
          outputs = { o = "o" }, command = [[sleep 60; touch {outputs.o}]] })
        '''
        self.assertEqual(self.result("return what(slow())", head=head), ["missing"])
        slow = self.tasks()["slow"]
        self.assertEqual((slow["attempts"], slow["status"], slow["ignored"]), (2, "failed", True))

    def test_a_failure_that_is_not_ignored_still_fails_the_run(self):
        self.bad("b")
        head = 'local fails = flow.task("fails", function() error("it breaks") end)\n'
        self.script('return { what(qc("b")), fails() }', head)
        done = self.exits(1, self.flow("run", "."), "it breaks")
        self.assertNotIn("`qc` failed", done.err)
        self.assertEqual(self.show()["counts"]["ignored"], 1)

    def test_fail_fast_does_not_count_an_ignored_failure(self):
        self.bad("b")
        self.assertEqual(self.result('return { what(qc("b")), text(qc("a"):after(qc("b")).o) }', "--fail-fast"),
                         [["missing"], "a\n"])

    def test_the_summary_names_ignored_failures_and_strict_exits_with_1(self):
        self.bad("b")
        self.script('return flow.map(qc, { "a", "b" })')
        done = self.good("run", ".")
        run = self.show()["run"]
        self.assertIn("ignored: `qc[2]`; `flow retry %s` runs it again" % run, done.out)
        self.assertIn("`flow resume %s --code new`" % run, done.err)
        self.assertIn("1 failed (1 ignored)", done.out)
        self.assertIn("qc[2]: failed (ignored)", done.out)
        done = self.exits(1, self.flow("run", ".", "--strict"), "with --strict the exit code is 1", "`qc[2]`")
        self.assertEqual(self.show()["status"], "succeeded")
        done = self.exits(1, self.flow("run", ".", "--strict", "--json"))
        self.assertEqual(done.lines()[-1]["counts"]["ignored"], 1)
        event = [e for e in done.lines() if e.get("event") == "task" and e["task"] == "qc[2]" and e["status"] == "failed"]
        self.assertTrue(event[0]["ignored"])
        os.remove(self.path("bad-b"))
        self.exits(0, self.flow("run", ".", "--strict"))

    def test_quiet_and_json_name_ignored_failures_on_stderr(self):
        self.bad("b")
        self.script('return flow.map(qc, { "a", "b" })')
        for words in (["--quiet"], ["--json"], ["--json", "--quiet"]):
            with self.subTest(words):
                done = self.good("run", ".", *words)
                self.assertIn("warning: ignored: `qc[2]`; `flow retry %s`" % self.show()["run"], done.err)
                self.assertNotIn("ignored: `qc[2]`", done.out)
        done = self.exits(1, self.flow("run", ".", "--quiet", "--strict"))
        self.assertEqual(done.err.count("`qc[2]`"), 1, done)

    def test_the_summary_names_what_was_skipped_because_of_an_ignored_failure(self):
        self.bad("b", "c")
        self.script('return merge { files = { qc("a").o, qc("b").o, qc("c").o } }')
        done = self.good("run", ".")
        self.assertIn("ignored: `qc#2`, `qc#3`; skipped because of them: `merge`; `flow retry %s` runs them again"
                      % self.show()["run"], done.out)

    def test_resume_prints_the_run_and_retry_runs_ignored_failures_again(self):
        self.bad("b")
        self.script('''local m = flow.map(qc, { "a", "b", "c" })
        return { text(merge(m:each("o")).all), what(qc("b")), text(align(m[1].o).bam) }''')
        self.good("run", ".")
        self.assertEqual(self.show()["result"], ["a\nc\n", ["missing"], "a\n"])
        self.good("resume")
        self.assertEqual((self.tasks()["qc[2]"]["attempts"], len(self.read("aligned").split())), (1, 1))
        os.remove(self.path("bad-b"))
        self.good("resume")
        self.assertEqual(self.show()["result"][0], "a\nc\n")
        self.good("retry", "last")
        self.assertEqual(self.show()["result"], ["a\nb\nc\n", ["table"], "a\n"])
        tasks = self.tasks()
        self.assertEqual((tasks["qc[1]"]["attempts"], tasks["qc[2]"]["status"], tasks["align"]["cached"]),
                         (1, "succeeded", True))
        self.assertEqual(self.show()["counts"]["ignored"], 0)
        self.assertEqual(len(self.read("aligned").split()), 1)
        self.exits(0, self.flow("retry", "last"))

    def test_retry_of_one_ignored_task_runs_what_it_changes(self):
        self.bad("b")
        self.script('return text(merge(flow.map(qc, { "a", "b" }):each("o")).all)')
        self.good("run", ".")
        os.remove(self.path("bad-b"))
        self.good("retry", "last", "qc[2]")
        self.assertEqual(self.show()["result"], "a\nb\n")

    def test_a_new_run_tries_ignored_failures_again_and_its_policy_is_not_part_of_the_key(self):
        self.bad("b")
        self.script('return flow.map(qc, { "a", "b" })')
        self.good("run", ".")
        os.remove(self.path("bad-b"))
        self.write("pipeline.lua", self.read("pipeline.lua").replace('on_error = "ignore", ', ""))
        self.good("run", ".")
        tasks = self.tasks()
        self.assertEqual((tasks["qc[1]"]["cached"], tasks["qc[2]"]["cached"]), (True, False))

    def test_an_ignored_failure_survives_a_killed_engine(self):
        self.bad("b")
        self.script('''local bad = qc("b")
        return { what(bad), text(align(qc("a"):after(bad).o).bam) }''')
        done = self.flow("run", ".", FLOW_FAILPOINT="commit-after:9")
        if done.code == 0:
            self.fail("the failpoint was not reached")
        self.good("resume")
        self.assertEqual(self.show()["result"], [["missing"], "a\n"])

    def test_a_task_cannot_return_missing(self):
        self.bad("b")
        head = 'local back = flow.task("back", function(ctx, x) return { inner = { x } } end)\n'
        self.script('return back(qc("b"))', head)
        self.exits(1, self.flow("run", "."), "returned flow.missing at result.inner[1]", "put flow.null in its place")

    def test_a_dynamic_task_and_its_calls(self):
        self.bad("b")
        head = '''local search = flow.dynamic("search", { on_error = "ignore" }, function(ctx, s)
          if s == "raise" then error("no") end
          if s == "call" then return flow.task == nil end
          return { qc(s), what(qc(s)) }
        end)
        local fails = flow.task("fails", function() error("it breaks") end)
        local outer = flow.dynamic("outer", { on_error = "ignore" }, function(ctx) return fails() end)
        '''
        self.assertEqual(self.result('return { search("b"), what(search("raise")) }', head=head),
                         [[None, ["missing"]], ["missing"]])
        self.script("return what(outer())", head)
        self.exits(1, self.flow("run", "."), "it breaks")

    def test_an_optional_output_that_does_not_exist_is_nil(self):
        head = '''local make = flow.shell("make", { args = { "s" },
          outputs = { o = "o", extra = { "extra.txt", optional = true }, parts = { "p.*", optional = true } },
          command = [[touch {outputs.o}; if [ {s} = b ]; then echo {s} > {outputs.extra}; touch p.1; fi]] })
        local kind = flow.task("kind", function(ctx, x, y) return { type(x), type(y) } end)
        '''
        body = '''local m = flow.map(make, { "a", "b" })
        return { whole = { a = make("a").extra, b = text(make("b").extra) }, kinds = kind(make("a").extra, make("a").parts),
                 there = kind(make("b").extra, make("b").parts), each = what(m:each("extra")), one = kind(m[1].extra),
                 each_kinds = kinds_of(m:each("extra")), keys = keys(make("a")) }'''
        head += '''local kinds_of = flow.task("kinds_of", function(ctx, list) local out = {}
          for i, x in ipairs(list) do out[i] = x == flow.null and "null" or type(x) end return out end)
        local keys = flow.task("keys", function(ctx, t) local out = {} for k in pairs(t) do out[#out + 1] = k end return out end)
        '''
        result = self.result(body, head=head)
        self.assertEqual(result["whole"], {"b": "b\n"})
        self.assertEqual((result["kinds"], result["there"]), (["nil", "nil"], ["string", "table"]))
        self.assertEqual((result["each_kinds"], result["one"][0]), (["null", "string"], "nil"))
        self.assertEqual(result["keys"], ["o", "stdout"])

    def test_an_output_that_is_not_optional_must_exist_and_its_options_are_checked(self):
        for output, code, words in (('{ "o", optional = false }', 1, ["made no output `o`"]),
                                    ('{ "o", optional = 1 }', 2, ["`outputs.o.optional` must be true or false"]),
                                    ('{ "o", optionl = true }', 2, ["unknown entry `optionl`"])):
            with self.subTest(output):
                self.script("return t()", 'local t = flow.shell("t", { outputs = { o = %s }, command = "true" })\n' % output)
                self.exits(code, self.flow("run", "."), *words)

    def test_invalid_uses_are_errors_with_a_place(self):
        for head, body, words in (
                ('local t = flow.task("t", { on_error = "skip" }, function() end)', "return t()",
                 ['the option `on_error` must be "ignore" or "fail", but is `skip`']),
                ('local t = flow.service("t", { on_error = "ignore" }, function() end)', "t()",
                 ["a service can't have `on_error = \"ignore\"`"]),
                ("", 'return flow.map(qc, { "a" }):results { lost = "null" }', ["unknown option `lost`"]),
                ("", 'return flow.map(qc, { "a" }):results { missing = 1 }', ['missing = "null"']),
                ("", 'return qc("a"):results { missing = "null" }', ["the shell task `qc` has no output `results`"])):
            with self.subTest(body):
                self.script(body, head + "\n")
                self.exits(2, self.flow("run", "."), "pipeline.lua:", *words)


if __name__ == "__main__":
    main()
