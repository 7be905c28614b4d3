#!/usr/bin/env python3
"""flow.files and flow.files.groups: what they list, when they list again, and their errors."""
import os
import shutil

import place

FILES = """
local flow = require "flow"
local count = flow.shell("count", { args = { "text" }, command = "cat {text}" })
local all = flow.task("all", function(ctx, texts)
  local out = {}
  for _, text in ipairs(texts) do out[#out + 1] = text.stdout end
  return table.concat(out)
end)
return flow.pipeline("files", {}, function()
  local files = flow.files(%s)
  print("listed " .. #files)
  return all(flow.map(count, files))
end)
"""
PARAMETER = """
local flow = require "flow"
local all = flow.task("all", function(ctx, paths)
  local out = {}
  for i, path in ipairs(paths) do
    local file = io.open(path)
    out[i] = path:match("[^/]+$") .. "=" .. file:read("a")
    file:close()
  end
  return table.concat(out, " ")
end)
return flow.pipeline("files", { files = flow.param.files %s }, function(p) return all(p.files) end)
"""
TAGGED = place.HOLD + """
local words = flow.task("words", function(ctx, held) return { "x", "y" } end)
local t = flow.task("t", function(ctx, word, count) return word .. count end)
return flow.pipeline("files", {}, function()
  local count = #flow.files("in/*.txt") + #flow.files.groups("in/{name}.txt") - 2
  return flow.map(t, words(hold("%s", "one").stdout), count):tag(function(word) return word end)
end)
"""
LISTED = """
local flow = require "flow"
local read = flow.task("read", function(ctx, path) return path:match("inputs/%%d+/(.*)$") .. "=" .. flow.fs.read(path) end)
local make = flow.shell("make", { outputs = { o = "out" }, command = [[
  mkdir -p out/sub; printf 1 > out/b.txt; printf 2 > out/sub/a.txt; printf 3 > out/.hidden]] })
local same = flow.shell("same", { args = { "file" }, command = "echo {file}; cat {file}", outputs = { copy = "{file}" } })
return flow.pipeline("list", { folder = flow.param.path { default = "in" } }, function(p)
  %s
end)
"""
GROUPS = """
local flow = require "flow"
local pair = flow.task("pair", function(ctx, sample, one, two)
  local function read(path) local file = io.open(path) local text = file:read("a") file:close() return text end
  return sample .. ":" .. read(one) .. read(two)
end)
return flow.pipeline("groups", {}, function()
  local out = {}
  for _, group in ipairs(flow.files.groups(%s)) do
    out[#out + 1] = pair(group.sample, group.files["1"], group.files["2"])
  end
  return out
end)
"""


class InputFiles(place.Place):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("in"))

    def make(self, *names):
        for name in names:
            os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
            self.write(name, os.path.basename(name)[0])

    def files(self, pattern):
        self.write("files.lua", FILES % pattern)

    def result(self, run="last"):
        return self.show(run)["result"]

    def ran(self):
        return sorted(name for name, task in self.tasks().items() if not task["cached"])

    def test_a_parameter_takes_a_pattern_a_list_or_a_file_of_names(self):
        self.make("in/b.txt", "in/a.txt", "in/c.md")
        self.write("files.lua", PARAMETER % '{ default = "in/*.txt" }')
        self.exits(0, self.flow("run", "files.lua"))
        self.assertEqual(self.result(), "a.txt=a b.txt=b")
        os.mkdir(self.path("elsewhere"))
        for given, result in (("files=in/*", "a.txt=a b.txt=b c.md=c"), ('files=["in/c.md", "in/a.txt"]', "c.md=c a.txt=a"),
                              ("files=@names", "c.md=c b.txt=b")):
            self.write("names", "# two files\nin/c.md\n\nin/b.txt\n")
            self.exits(0, self.flow("run", "files.lua", "--param", given))
            self.assertEqual(self.result(), result)
            os.remove(self.path("names"))
        self.write("values.json", '{"files": ["in/c.md"]}')
        self.exits(0, self.flow("run", "files.lua", "--params", "values.json"))
        self.assertEqual(self.result(), "c.md=c")
        self.exits(0, self.flow("resume", "last", "--code", "new"))
        self.exits(0, self.flow("run", "files.lua", "--help"), "in/*.txt")
        for given, text in (("files=in/*.none", "the parameter `files` names no files: no file matches `in/*.none`"),
                            ("files=", "must be a pattern of paths in a string, but is empty"),
                            ('files=["in/none"]', "which does not exist"),
                            ("files=[1]", "has an item 1 that must be a path in a string"),
                            ("files=@in/none", "in/none")):
            self.exits(2, self.flow("run", "files.lua", "--param", given), text)

    def test_a_pattern_is_a_sorted_list_and_a_new_file_runs_only_its_tasks(self):
        self.make("in/b.txt", "in/a.txt", "in/c.md", "in/.d.txt", "in/deep/e.txt")
        self.files('"in/*.txt"')
        self.exits(0, self.flow("run", "files.lua"), "listed 2")
        self.assertEqual(self.result(), "ab")
        self.make("in/aa.txt")
        self.good("run", "files.lua")
        self.assertEqual(self.result(), "aab")
        self.assertEqual(self.ran(), ["all", "count[2]"])
        os.rename(self.path("in/aa.txt"), self.path("in/z.txt"))
        os.utime(self.path("in/b.txt"))
        self.good("run", "files.lua")
        self.assertEqual(self.result(), "aba")
        self.assertEqual(self.ran(), ["all", "count[3]"])
        self.files('"in/**/[!c]*.{txt,md}"')
        self.good("run", "files.lua")
        self.assertEqual(self.result(), "abea")

    def test_resume_keeps_the_list_and_new_code_lists_again(self):
        self.make("in/a.txt", "in/b.txt")
        self.write("files.lua", (FILES % '"in/*.txt"').replace('"cat {text}"', '"grep -v b {text}"'))
        self.exits(1, self.flow("run", "files.lua"))
        self.make("in/c.txt")
        self.exits(1, self.flow("resume"))
        self.assertEqual(set(self.tasks()), {"all", "count[1]", "count[2]"})
        self.files('"in/*.txt"')
        self.good("resume", "last", "--code", "new")
        self.assertEqual(self.result(), "abc")

    def test_errors_name_the_pattern_and_the_place(self):
        self.make("in/a.txt")
        self.files('"in/deep/*.txt"')
        self.exits(2, self.flow("run", "files.lua"), "files.lua:10: flow.files: no file matches `in/deep/*.txt`",
                   "the nearest folder that exists is `%s`" % self.path("in"))
        self.files('"in/*.md", { allow_empty = true }')
        self.good("run", "files.lua")
        self.assertEqual(self.result(), "")
        self.files('"in/*.md", { empty = true }')
        self.exits(2, self.flow("run", "files.lua"), "flow.files has no option `empty`")
        os.symlink("nowhere", self.path("in/broken.txt"))
        self.files('"in/*.txt"')
        self.exits(2, self.flow("run", "files.lua"), "in/broken.txt", "which does not exist")
        self.write("load.lua", 'local flow = require "flow"\nlocal files = flow.files("in/*")\n'
                               'return flow.pipeline("p", {}, function() end)\n')
        self.exits(2, self.flow("run", "load.lua"), "load.lua:2: flow.files")
        self.write("task.lua", 'local flow = require "flow"\n'
                               'local t = flow.task("t", function() return flow.files("in/*") end)\n'
                               'return flow.pipeline("p", {}, function() return t() end)\n')
        self.exits(1, self.flow("run", "task.lua"), "task.lua:2: flow.files")
        self.write("dynamic.lua", 'local flow = require "flow"\n'
                                  'local d = flow.dynamic("d", function() return flow.files("in/*") end)\n'
                                  'return flow.pipeline("p", {}, function() return d() end)\n')
        self.exits(1, self.flow("run", "dynamic.lua"), "dynamic.lua:2: flow.files lists files before the run starts")

    def test_a_state_is_no_input(self):
        self.make("in/a.txt")
        self.files('"**/*"')
        self.good("run", "files.lua", "--state", "in/state")
        self.good("run", "files.lua", "--state", "in/state")
        self.assertEqual({task["name"] for task in self.good("show", "last", "--json", "--state", "in/state").lines()[0]["tasks"]},
                         {"all", "count[1]", "count[2]"})  # files.lua and in/a.txt

    def test_a_tag_function_runs_in_a_graph_of_the_same_list(self):
        self.make("in/a.txt", "in/b.txt")
        self.write("files.lua", TAGGED % self.path("gate"))
        run = self.start("run", "files.lua")
        self.until_holds("one")
        shutil.rmtree(self.path("in"))
        self.open("gate")
        self.exits(0, self.end(run))
        self.assertEqual(self.result(), ["x2", "y2"])
        self.assertIn("t[x]", self.good("show", "last").out)

    def listed(self, body):
        self.write("pipeline.lua", LISTED % body)

    def test_a_folder_is_the_list_of_its_files(self):
        os.makedirs(self.path("in", "sub"))
        for name, text in (("b.txt", "1"), ("sub/a.txt", "2"), (".hidden", "3")):
            self.write(os.path.join("in", name), text)
        expected = [".hidden=3", "b.txt=1", "sub/a.txt=2"]
        for folder in ("p.folder", 'flow.file("in")', "make().o"):
            self.listed("return flow.map(read, flow.list(%s))" % folder)
            self.good("run", ".")
            self.assertEqual([value.replace(".flow/", "") for value in self.show()["result"]], expected, folder)
        self.listed("local files = flow.list(p.folder) return { #files, files[3].name, read(files[3]), read(flow.list(make().o)[3]) }")
        self.good("run", ".")
        self.assertEqual(self.show()["result"], [3, "sub/a.txt", "sub/a.txt=2", "sub/a.txt=2"])
        self.assertEqual(self.show()["counts"]["cached"], 3)  # also where the folder is of another place
        self.write(os.path.join("in", "sub", "c.txt"), "4")
        self.good("run", ".", "--param", "folder=" + self.path("in"))
        self.assertEqual(self.show()["result"][0], 4)

    def test_a_listed_file_keeps_its_path_in_get(self):
        self.listed("return { files = flow.list(make().o), one = flow.list(make().o)[3] }")
        self.good("run", ".")
        self.good("get", "last", "-o", "out")
        found = sorted(os.path.relpath(os.path.join(at, name), self.path("out"))
                       for at, _, names in os.walk(self.path("out")) for name in names)
        self.assertEqual(found, sorted([".hidden", "b.txt", "sub/a.txt", "sub/a-2.txt", "result.json"]))

    def test_what_is_no_folder_is_an_error(self):
        self.write("text", "x")
        for body, code, words in (
                ('return flow.list("in")', 2, ['flow.files("data/**")']),
                ("return flow.list(p)", 2, ["flow.list takes a folder"]),
                ('return flow.map(read, flow.list(flow.file("text")))', 2, ["`%s` is not a folder" % self.path("text")]),
                ('return flow.map(read, flow.list(flow.file("absent")))', 2, ["absent", "No such file"]),
                ("return flow.map(read, flow.list(make().stdout))", 1, ["flow.list needs a folder"]),
                ("return read(flow.list(make().o).x)", 1, ["has no field `x`"])):
            self.listed(body)
            self.exits(code, self.flow("run", ".", "--param", "folder=" + self.folder), *words)

    def test_a_shell_task_mapped_over_groups_has_an_argument_per_field(self):
        self.make("in/s1_R1.txt", "in/s1_R2.txt")
        script = """
local flow = require "flow"
local align = flow.shell("align", { args = { %s }, command = [[basename -a {sample} {files.1} {files.2}]] })
return flow.pipeline("groups", {}, function() return flow.map(align, flow.files.groups("in/{sample}_R{n}.txt")) end)
"""
        self.write("groups.lua", script % '"sample", "files"')
        self.good("run", "groups.lua")
        self.assertEqual(self.good("logs", "last", "align").out.split(), ["s1", "s1_R1.txt", "s1_R2.txt"])
        self.write("groups.lua", script.replace("basename -a {sample} {files.1} {files.2}", "echo {g}") % '"g"')
        self.exits(2, self.flow("run", "groups.lua"), "item 1 of flow.map: `align` has no argument `", "its arguments are: g. "
                   "A single table names the arguments by its fields: for all of this one, `args = { ", '"sample"', '"files"')

    def test_groups_by_captures(self):
        self.make("in/s2_R1.txt", "in/s2_R2.txt", "in/s1_R2.txt", "in/s1_R1.txt", "in/other.txt")
        self.write("groups.lua", GROUPS % '"in/{sample}_R{n}.txt"')
        self.good("run", "groups.lua")
        self.assertEqual(self.result(), ["s1:ss", "s2:ss"])
        os.unlink(self.path("in/s2_R2.txt"))
        self.exits(2, self.flow("run", "groups.lua"), 'the group sample = "s2" has no file with n = "2"', "in/s1_R2.txt")
        self.make("in/deep/s2_R2.txt", "in/more/s2_R2.txt")
        self.write("groups.lua", GROUPS % '"in/**/{sample}_R{n}.txt"')
        self.exits(2, self.flow("run", "groups.lua"), "in/deep/s2_R2.txt", "in/more/s2_R2.txt", "have the same captures")
        self.write("groups.lua", GROUPS % '"in/*.txt"')
        self.exits(2, self.flow("run", "groups.lua"), "`in/*.txt` has no capture")

    def test_a_client_of_the_engine_lists_too(self):
        self.make("in/a.txt")
        self.write("hold.lua", place.HOLD + 'return flow.pipeline("h", {}, function() return hold("%s", "h") end)\n'
                   % self.path("gate"))
        run = self.start("run", "hold.lua")
        self.until_holds("h")
        self.files('"in/*.txt"')
        self.good("run", "files.lua")
        self.assertEqual(self.result(), "a")
        self.open("gate")
        self.exits(0, self.end(run))

    def test_plan_and_graph_list(self):
        self.make("in/a.txt", "in/b.txt")
        self.files('"in/*.txt"')
        self.assertIn("count[1,2]", self.good("plan", "files.lua").out)
        self.good("graph", "files.lua")
        shutil.rmtree(self.path("in"))
        self.exits(2, self.flow("plan", "files.lua"), "no file matches")


if __name__ == "__main__":
    place.main()
