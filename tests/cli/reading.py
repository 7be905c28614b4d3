#!/usr/bin/env python3
"""What `flow why`, `flow plan` and `flow diff` say: one paragraph for tasks with the same cause, names of arguments, items and files,
and the changed lines of functions.

usage: reading.py --flow BIN [TEST...]
"""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

SCRIPT = r'''
local flow = require "flow"
local function weight(n)
  return n
end
local align = flow.task("align", function(ctx, sample, options)
  local result = weight(sample)
  return result * options.scale
end)
local list = flow.task("list", function(ctx, folder) return #flow.fs.list(folder) end)
local join = flow.shell("join", { args = { "first", "text" }, command = "cat {text}; echo {first}" })
local sum = flow.task("sum", function(ctx, values, ...) return flow.table.sum(values) end)
return flow.pipeline("reads", {
  n = flow.param.int { default = 46 }, scale = flow.param.int { default = 1 }, data = flow.param.path {}, text = flow.param.path {},
}, function(p)
  local samples = {}
  for i = 1, p.n do samples[i] = i end
  local aligned = flow.map(align, samples, { scale = p.scale, name = "x" })
  return { sum(aligned, 5), list(p.data), join(p.scale, p.text), join { first = 1, text = p.text } }
end)
'''
DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


class Reading(Place):
    def setUp(self):
        super().setUp()
        self.write("pipeline.lua", SCRIPT)
        os.mkdir(self.path("data"))
        for name in ("s1.csv", "s2.csv", "s3.csv"):
            self.write("data/" + name, name)
        self.write("in.txt", "one")

    WORDS = [".", "--param", "data=data", "--param", "text=in.txt"]

    def run_it(self, *words):
        self.good("run", *self.WORDS, "--quiet", *words)
        return self.show()["run"]

    def edit(self, before, after):
        text = self.read("pipeline.lua")
        self.assertIn(before, text)
        self.write("pipeline.lua", text.replace(before, after))

    def test_instances_of_a_map_with_a_changed_function_are_one_paragraph(self):
        first = self.run_it()
        self.edit("  return n\n", "  return n + 1\n")
        planned = self.good("plan", *self.WORDS).out
        self.assertRegex(planned, r"(?m)^runs +align\[1\.\.46\] +46 tasks: `weight` in pipeline.lua changed$")
        self.assertRegex(planned, r"(?m)^cached +list +from the run %s$" % first)
        self.assertIn("50 nodes: 3 cached, 46 to run, 1 unknown", planned)
        second = self.run_it()
        since = "46 tasks, each succeeded in 1 attempt.\nIt ran again because, since the run %s:\n" % first
        changed = ("  `weight` in pipeline.lua changed (pipeline.lua:3-5):\n    @@ -3 +3 @@\n     local function weight(n)\n"
                   "    -  return n\n    +  return n + 1\n     end\n")
        paragraph = "`align[1..46]`: " + since + changed
        why = self.good("why").out
        self.assertIn("\n\n" + paragraph, why)
        self.assertEqual(why.count("It ran again"), 2)
        self.assertEqual(self.good("why", "last", "align").out,
                         "`align` is a map of 46 tasks: 46 succeeded.\n\n" + paragraph)
        diff = self.good("diff", first, second).out
        self.assertIn("`align[1..46]` (46 tasks)", diff)
        self.assertIn(changed, diff)
        for words in (["why"], ["diff", first, second]):
            verbose = self.good(*words, "--verbose").out
            self.assertNotIn("align[1..46]", verbose)
            self.assertGreaterEqual(verbose.count("+  return n + 1"), 46)
        self.assertEqual(len(self.good("plan", *self.WORDS, "--fresh", "--verbose").out.splitlines()), 51)

    def test_plan_has_one_row_for_equal_rows_and_json_has_each(self):
        fresh = self.good("plan", *self.WORDS).out
        self.assertRegex(fresh, r"(?m)^runs +align\[1\.\.46\] +46 tasks: no earlier run has it$")
        self.assertEqual(len(fresh.splitlines()), 5)
        lines = self.good("plan", *self.WORDS, "--json").lines()
        self.assertEqual(len(lines), 50)
        self.assertEqual(sorted(lines[0]), ["name", "reason", "tag", "verdict"])

    def test_arguments_have_the_names_of_parameters(self):
        first = self.run_it()
        second = self.run_it("--param", "scale=2")
        why = self.good("why", "last", "align[7]").out
        self.assertIn("\n  argument `options`.scale changed from `1` to `2`\n", why)
        self.assertIn("\n  argument `first` changed from `1` to `2`\n", self.good("why", "last", "join").out)
        summed = self.good("why", "last", "sum").out
        self.assertIn("\n  argument `values`[1] changed from `1` to `2` (from `align`)\n", summed)
        self.assertIn("\n  argument `values`: 41 more differences (from `align`)\n", summed)
        self.assertIn("argument `options`.scale changed", self.good("diff", first, second).out)
        third = self.run_it("--param", "n=47", "--param", "scale=2")
        self.assertIn("argument `values` has 1 item more: `94` (from `align`)", self.good("why", "last", "sum").out)
        self.assertIn("`align[47]` is only in %s\n" % third, self.good("diff", second, third).out)

    def test_different_values_of_one_argument_are_one_paragraph(self):
        self.run_it("--param", "n=3")
        self.edit("samples[i] = i", "samples[i] = i * 10")
        self.run_it("--param", "n=3")
        why = self.good("why", "last", "align").out
        self.assertIn("`align[1..3]`: 3 tasks, each succeeded", why)
        self.assertIn("  argument `sample` changed from `1` to `10`\n  This is `align[1]`; of the others the same parts changed.\n",
                      why)
        self.assertIn("argument `sample` changed from `3` to `30`", self.good("why", "last", "align[3]").out)

    def test_files_of_a_folder_are_named(self):
        self.run_it()
        self.write("data/s1.csv", "other")
        self.write("data/s2b.csv", "new")
        os.remove(self.path("data/s3.csv"))
        planned = self.good("plan", *self.WORDS).out
        changes = ["argument `folder`: `data/s1.csv` changed", "argument `folder`: `data/s2b.csv` is new",
                   "argument `folder`: `data/s3.csv` is gone"]
        self.assertIn("; ".join(changes), planned)
        self.run_it()
        self.assertIn("\n  " + "\n  ".join(changes) + "\n", self.good("why", "last", "list").out)

    def test_a_changed_file_is_named_with_short_digests(self):
        self.run_it()
        self.write("in.txt", "three")
        planned = self.good("plan", *self.WORDS).out
        self.assertRegex(planned, r"argument `text`: `in\.txt` changed \(it was 3 B, [0-9a-f]{12}, and is 5 B, [0-9a-f]{12}\)")
        self.assertNotRegex(planned, DIGEST)
        first, second = self.show()["run"], self.run_it()
        for task in ("join", "join#2"):  # called with a list, and with names
            why = self.good("why", "last", task).out
            self.assertRegex(why, r"argument `text`: `in\.txt` changed \(it was 3 B, ")
            self.assertNotRegex(why, DIGEST)
            self.assertRegex(self.good("why", "last", task, "--verbose").out, DIGEST)
        self.assertNotRegex(self.good("diff", first, second).out, DIGEST)
        self.assertRegex(self.good("diff", first, second, "--verbose").out, DIGEST)
        self.assertNotRegex(self.good("why", "last", "join", "--json").lines()[0]["why"], DIGEST)

    def test_a_cached_task_says_of_which_run(self):
        first = self.run_it()
        self.run_it()
        self.assertEqual(self.good("why", "last", "sum").out,
                         "`sum` did not run: an earlier result with the same key was used, of the run %s.\n" % first)

    def test_the_task_function_itself_and_a_command(self):
        self.run_it()
        self.edit("  return result * options.scale\n", "  local scaled = result * options.scale\n  return scaled + 0\n")
        self.edit("cat {text}; echo {first}", "cat {text}; echo {first} {first}")
        self.run_it()
        self.assertIn("  its function changed (pipeline.lua:6-10):\n    @@ -7 +7 @@\n       local result = weight(sample)\n"
                      "    -  return result * options.scale\n    +  local scaled = result * options.scale\n"
                      "    +  return scaled + 0\n     end", self.good("why", "last", "align[1]").out)
        why = self.good("why").out
        self.assertIn("`join, join#2`: 2 tasks", why)
        self.assertIn("its command changed from\n  cat {text}; echo {first}\nto\n  cat {text}; echo {first} {first}", why)

    def test_a_command_of_several_lines_shows_its_changed_lines(self):
        self.edit('"cat {text}; echo {first}"', "[[\ncat {text}\nwc {text}\nwc -l {text}\necho {first}\n]]")
        first = self.run_it()
        self.edit("\necho {first}\n", "\necho {first} {first}\n")
        changed = ("its command changed:\n    @@ -3 +3 @@\n     wc -l {text}\n    -echo {first}\n"
                   "    +echo {first} {first}\n")
        self.assertIn(changed, self.good("plan", *self.WORDS).out)
        second = self.run_it()
        for words in (["why", "last", "join"], ["diff", first, second]):
            out = self.good(*words).out
            self.assertIn("  " + changed, out)
            self.assertNotIn("cat {text}", out)

    def test_a_command_that_differs_only_at_its_end_is_shown_in_full(self):
        self.edit('"cat {text}; echo {first}"', "[[\ncat {text}\necho {first}]]")
        self.run_it()
        self.edit("\necho {first}]]", "\necho {first}\n]]")
        self.assertIn("its command changed from\n  cat {text}\necho {first}\nto\n", self.good("plan", *self.WORDS).out)


if __name__ == "__main__":
    main()
