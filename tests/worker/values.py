#!/usr/bin/env python3
"""Limits of values between tasks: large strings and files, folders, names of any bytes, inputs that are written to.

usage: values.py --flow BIN [TEST...]
"""
import filecmp
import os
import stat
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

HEAD = 'local flow = require "flow"\n'
MIB = 1 << 20
LARGE = 100_000  # too large for the database


class Values(Place):
    def script(self, body, params=""):
        self.write("pipeline.lua", HEAD + body.replace("PIPELINE", 'flow.pipeline("values", { %s }, function(p)' % params))

    def run_for(self, body, params="", words=()):
        self.script(body, params)
        self.good("run", ".", *words)
        return self.show()["result"]

    def get(self, *words):
        out = self.path("out")
        paths = self.good("get", "last", *words, "-o", out).out.splitlines()
        return {os.path.relpath(path, out) for path in paths if path.startswith(out)}

    def is_executable(self, *names):
        return bool(os.stat(self.path("out", *names)).st_mode & stat.S_IXUSR)

    def test_a_string_of_64_mib_is_passed_to_a_consumer(self):
        result = self.run_for(r'''
local make = flow.task("make", function() return string.rep("0123456789abcdef", 4 << 20) end)
local size = flow.task("size", function(ctx, text) return { #text, text:sub(-4) } end)
return PIPELINE
  local text = make()
  return { size = size(text), text = text }
end)
''')
        self.assertEqual(result["size"], [64 * MIB, "cdef"])
        self.assertEqual(len(result["text"]), 64 * MIB)
        self.assertIn("2 cached", self.good("run", ".").out.splitlines()[-1])

    def test_a_map_of_a_dynamic_task_is_the_list_of_its_calls_results(self):
        body = r'''
local times = flow.task("times", function(ctx, n) return n * 7 end)
local list = flow.task("list", function(ctx) return { 3, 4 } end)
local calls = flow.dynamic("calls", function(ctx, n) return { a = times(n), n = n } end)
local plain = flow.dynamic("plain", function(ctx, n) return n * 2 end)
local first = flow.task("first", function(ctx, items, part) return { items[1].a, part } end)
return PIPELINE
  local literal = flow.map(calls, { 1, 2 })
  return { literal = literal, list = flow.map(calls, list()), plain = flow.map(plain, { 5, 6 }),
           taken = first(literal, literal[2].a) }
end)
'''
        expected = {"literal": [{"a": 7, "n": 1}, {"a": 14, "n": 2}], "list": [{"a": 21, "n": 3}, {"a": 28, "n": 4}],
                    "plain": [10, 12], "taken": [7, 14]}
        self.assertEqual(self.run_for(body), expected)
        self.assertEqual(self.run_for(body), expected)  # from the cache

    def test_a_dynamic_task_that_calls_itself_without_end_fails(self):
        name = "deep" * 25
        self.write("pipeline.lua", 'local flow = require "flow"\nlocal deep\n'
                   'deep = flow.dynamic("%s", function(ctx, n) return deep(n + 1) end)\n'
                   'return flow.pipeline("endless", {}, function() return deep(1) end)\n' % name)
        self.exits(1, self.flow("run", "."), "each dynamic task within another adds its name: at most 10000 are allowed")
        self.assertEqual(len(self.show()["tasks"]), 100)

    def test_a_value_above_the_size_limit_fails_where_it_is_saved(self):
        calls = {'ctx:step("big", make)': "pipeline.lua:4: the step `big`: ",
                 "ctx:checkpoint(make())": "pipeline.lua:4: ctx:checkpoint: ", "return make()": "`t` returned"}
        for call, place in calls.items():
            with self.subTest(call):
                self.script('local function make() return string.rep("x", 129 << 20) end\n'
                            'local t = flow.task("t", function(ctx)\n  %s\nend)\n'
                            "return PIPELINE return t() end)\n" % call)
                self.exits(1, self.flow("run", "."), place, "129 MiB", "up to 128 MiB", "use a tensor or a file")
                self.assertEqual(self.tasks()["t"]["attempts"], 1)

    def test_a_file_of_300_mb_is_passed_to_a_consumer(self):
        result = self.run_for(r'''
local make = flow.shell("make", { outputs = { big = "big.bin" },
  command = "truncate -s 299999997 big.bin; printf end >> big.bin" })
local size = flow.shell("size", { args = { "file" }, command = "wc -c < {file}; tail -c 3 {file}" })
return PIPELINE
  local big = make {}.big
  return { size = size(big).stdout, big = big }
end)
''')
        self.assertEqual(result["size"], "300000000\nend")
        self.assertEqual(result["big"]["$file"]["size"], 300000000)
        self.get("big")
        self.assertEqual(os.path.getsize(self.path("out", "big.bin")), 300000000)

    def test_a_folder_is_copied_out_as_it_was_made(self):
        result = self.run_for(r'''
local make = flow.shell("make", { outputs = { tree = "tree", none = "none" }, command = [[
  mkdir -p tree/a/b none tree/empty
  echo top > tree/top; echo deep > tree/a/b/deep; head -c 100000 /dev/zero > tree/a/large
  echo 'echo runs' > tree/a/tool; chmod +x tree/a/tool
]] })
local look = flow.shell("look", { args = { "tree", "none" },
  command = "{tree}/a/tool 2>/dev/null || sh {tree}/a/tool; cat {tree}/a/b/deep; ls {none} | wc -l" })
return PIPELINE
  local made = make {}
  return { look = look(made.tree, made.none).stdout, made = { made.tree, made.none } }
end)
''')
        self.assertEqual(result["look"], "runs\ndeep\n0\n")
        self.assertEqual(self.get(), {"tree/top", "tree/a/b/deep", "tree/a/large", "tree/a/tool", "none", "result.json"})
        self.assertTrue(self.is_executable("tree", "a", "tool"))
        self.assertFalse(self.is_executable("tree", "top"))
        self.assertEqual(os.listdir(self.path("out", "none")), [])

    def test_an_empty_folder_is_copied_out_with_the_run_too(self):
        self.run_for('local make = flow.shell("make", { outputs = { none = "none" }, command = "mkdir none; true" })\n'
                     "return PIPELINE return make {}.none end)\n", words=("--out", self.path("out")))
        self.assertEqual(os.listdir(self.path("out")), ["none"])

    def test_files_with_equal_names_do_not_overwrite_each_other(self):
        self.run_for(r'''
local make = flow.shell("make", { args = { "word" }, outputs = { tree = "tree", json = "result.json" },
  command = "mkdir tree; echo {word} > tree/word; echo {word} > result.json" })
return PIPELINE return { make("one"), make("two") } end)
''')
        self.assertEqual(self.get(), {"tree/word", "tree-2/word", "result.json", "result-2.json", "result-3.json"})
        self.assertEqual([self.read("out/" + name) for name in ("tree/word", "tree-2/word", "result.json", "result-2.json")],
                         ["one\n", "two\n"] * 2)
        self.assertIn("$file", self.read("out/result-3.json"))

    def test_the_executable_bit_belongs_to_the_blob(self):
        result = self.run_for(r'''
local make = flow.shell("make", { outputs = { tool = "tool", plain = "plain", link = "link", large = "large", list = "l*" },
  command = [[
    printf '#!/bin/sh\necho runs\n' > tool; chmod 755 tool; echo plain > plain; ln -s tool link
    head -c 100000 /dev/zero > behind; chmod 755 behind; ln -s behind large
  ]] })
local call = flow.shell("call", { args = { "tool", "link" }, command = "{tool}; {link}; true" })
return PIPELINE
  local made = make {}
  return { call = call(made.tool, made.link).stdout, made = made }
end)
''')
        self.assertEqual(result["call"], "runs\nruns\n")
        self.get()
        self.assertEqual([self.is_executable(name) for name in ("tool", "plain", "link", "large")],
                         [True, False, True, True])
        self.assertFalse(os.path.islink(self.path("out", "link")))
        self.assertEqual(self.read("out/link"), self.read("out/tool"))

    def test_names_of_any_bytes_are_copied_out_unchanged(self):
        names = [b"\xff\xfe", b"two words", b"new\nline", b"-dash", "ö".encode(), b"quote'\"`"]
        out = os.fsencode(self.path("named"))
        os.mkdir(out)
        for name in names:
            with open(os.path.join(out, name), "wb") as file:
                file.write(b"of " + name)
        self.run_for(r'''
local copy = flow.shell("copy", { args = { "from" }, outputs = { files = "to/*", tree = "to" }, command = "cp -r {from} to; true" })
local count = flow.shell("count", { args = { "files", "tree" }, command = "cat {files} | wc -c; ls {tree} | wc -l; true" })
return PIPELINE
  local copied = copy(p.from)
  return { copied = copied, count = count(copied.files, copied.tree).stdout }
end)
''', "from = flow.param.path {}", ("--param", "from=named"))
        count = self.show()["result"]["count"].split()
        self.assertEqual(count, [str(sum(len(name) + 3 for name in names)), str(len(names) + 1)])  # one name has two lines
        reported = [line["path"] for line in self.good("get", "last", "-o", "out", "--json").lines()]
        self.assertEqual(len(reported), 2 * len(names) + 1)
        self.assertEqual(sum("$bytes" in path for path in reported), 2)  # not UTF-8
        for name in names:
            for path in (name, os.path.join(b"to", name)):
                with open(os.path.join(os.fsencode(self.path("out")), path), "rb") as file:
                    self.assertEqual(file.read(), b"of " + name)
        same = filecmp.dircmp(out, os.path.join(os.fsencode(self.path("out")), b"to"))
        self.assertEqual((same.left_only, same.right_only, same.diff_files), ([], [], []))

    def written(self, name, options=""):
        self.script(r'''
local spoil = flow.shell("spoil", { args = { "file" }, %s command = "chmod u+w {file}; printf spoilt >> {file}; wc -c < {file}" })
return PIPELINE return spoil(p.file).stdout end)
''' % options, "file = flow.param.path {}")
        return self.flow("run", ".", "--param", "file=" + name)

    def size_of(self, name):
        return self.run_for('local size = flow.shell("size", { args = { "file" }, command = "wc -c < {file}; true" })\n'
                            "return PIPELINE return size(p.file).stdout end)\n", "file = flow.param.path {}",
                            ("--fresh", "--param", "file=" + name))

    def test_a_write_to_an_input_fails_the_attempt_and_the_input_stays_unchanged(self):
        for size in (4, LARGE):
            with self.subTest(size):
                self.write("in%d" % size, "x" * size)
                self.exits(1, self.written("in%d" % size), "input changed")
                self.assertEqual(self.tasks()["spoil"]["attempts"], 1)
                self.assertEqual(os.path.getsize(self.path("in%d" % size)), size)
                self.assertEqual(self.size_of("in%d" % size), "%d\n" % size)

    def test_a_copy_may_be_written_to_and_is_not_keyed(self):
        self.write("in", "x" * LARGE)
        self.exits(0, self.written("in", 'stage = "copy",'))
        self.assertEqual(self.show()["result"], "%d\n" % (LARGE + len("spoilt")))
        self.assertEqual(self.size_of("in"), "%d\n" % LARGE)
        self.exits(0, self.written("in"), "1 cached")  # without the option: the same key

    def test_inputs_are_read_only_and_copies_are_not(self):
        self.write("in", "x")
        result = self.run_for(r'''
local mode = { args = { "file" }, command = "stat -L -c %a {file}; echo {file}" }
local plain = flow.shell("plain", mode)
local copy = flow.shell("copy", { args = { "file" }, stage = "copy", command = mode.command })
return PIPELINE return { plain(p.file).stdout, copy(p.file).stdout } end)
''', "file = flow.param.path {}", ("--param", "file=in"))
        plain, copy = (lines.split() for lines in result)
        self.assertEqual(int(plain[0], 8) & 0o222, 0)
        self.assertNotEqual(int(copy[0], 8) & 0o200, 0)
        self.assertEqual((plain[1], copy[1]), ("inputs/1/in", "inputs/1/in"))

    def test_a_path_of_an_input_becomes_that_file_again(self):
        self.write("in", "content")
        result = self.run_for(r'''
local pass = flow.task("pass", function(ctx, path)
  assert(path:sub(1, 1) == "/", path)
  return { again = path, text = path .. "!" == path and 1 or 2 }
end)
local read = flow.shell("read", { args = { "file" }, command = "cat {file}" })
return PIPELINE
  local passed = pass(p.file)
  return { passed, read(passed.again).stdout }
end)
''', "file = flow.param.path {}", ("--param", "file=in"))
        self.assertEqual((result[0]["again"]["$file"]["name"], result[0]["again"]["$file"]["size"]), ("in", 7))
        self.assertEqual(result[1], "content")

    def test_a_path_in_scratch_or_state_is_an_error_with_the_correction(self):
        for value in ('ctx.dir .. "/x.txt"', "ctx.dir", "os.getenv('STATE') .. '/objects'"):
            with self.subTest(value):
                self.script('local t = flow.task("t", function(ctx) return { out = %s } end)\n'
                            "return PIPELINE return t() end)\n" % value)
                self.exits(1, self.flow("run", ".", STATE=self.state), "result.out", "ctx:file")

    def test_a_file_of_scratch_is_a_value(self):
        result = self.run_for(r'''
local t = flow.task("t", function(ctx)
  local file = io.open(ctx.dir .. "/x.txt", "w")
  file:write("kept")
  file:close()
  return ctx:file("x.txt")
end)
return PIPELINE return t() end)
''')
        self.assertEqual((result["$file"]["name"], result["$file"]["size"]), ("x.txt", 4))
        self.assertEqual(self.get(), {"x.txt"})
        self.assertEqual(self.read("out/x.txt"), "kept")


if __name__ == "__main__":
    main()
