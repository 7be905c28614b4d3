#!/usr/bin/env python3
"""Resource functions: what they see, when they are called, what they may return, and that what they
returned survives a crash.

usage: resource_functions.py --flow BIN [TEST...]
"""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from place import Place, main  # noqa: E402

HEAD = r'''
local flow = require "flow"
'''


class ResourceFunctions(Place):
    def script(self, body):
        self.write("pipeline.lua", HEAD + body.replace("FOLDER", self.folder) + "\n")

    def test_a_shell_task_gets_memory_by_the_size_of_its_input(self):
        self.write("small.txt", "x" * 1000)
        self.write("large.txt", "x" * 5000)
        self.script('''
local sort = flow.shell("sort", { args = { "reads" }, outputs = { o = "o.txt" },
  memory = function(args, attempt)
    assert(args.reads.name == args[1].name and args.reads.size == args[1].size)
    return args.reads.size * 100000 * attempt
  end,
  cpus = function(args) return args[1].name == "large.txt" and 2 or 1 end,
  command = [[echo {memory} {cpus} > {outputs.o}]] })
local read = flow.task("read", function(ctx, file) return flow.fs.read(file) end)
return flow.pipeline("sizes", { reads = flow.param.files { default = "*.txt" } }, function(p)
  return flow.map(read, flow.map(sort, p.reads):each("o"))
end)''')
        self.good("run", ".", "--jobs", "2")
        self.assertEqual(self.show()["result"], ["500000000 2\n", "100000000 1\n"])

    def test_named_arguments_tensors_and_tables_are_seen(self):
        self.script('''
local make = flow.task("make", function(ctx)
  return { x = flow.zeros { 3, 4 }, label = "a" }
end)
local seen = flow.task("seen", { memory = function(args, attempt)
  local made = args[1]
  assert(#args == 2 and args[2] == "second" and attempt == 1)
  assert(made.x.dtype == "f32" and made.x.shape[1] == 3 and made.x.shape[2] == 4)
  assert(made.label == "a", "label")
  return made.x.shape[1] << 30
end }, function(ctx, made) return made.label end)
local named = flow.shell("named", { args = { "a", "b" }, command = [[echo {b}]],
  memory = function(args) assert(#args == 0 and args.b == 7) return "100M" end })
return flow.pipeline("args", {}, function(p)
  return { seen(make(), "second"), named { a = 1, b = 7 }.stdout }
end)''')
        self.good("run", ".")
        self.assertEqual(self.show()["result"], ["a", "7\n"])

    def test_each_attempt_has_its_own_value(self):
        self.script('''
local grow = flow.shell("grow", { retries = { max = 2, backoff = "1ms" }, command = [[echo {memory} >> FOLDER/asked; test "$(wc -l < FOLDER/asked)" = 3]],
  memory = function(args, attempt) return attempt * 1000000000 end })
return flow.pipeline("attempts", {}, function(p) return grow().stdout end)''')
        self.good("run", ".")
        self.assertEqual(self.read("asked").split(), ["1000000000", "2000000000", "3000000000"])

    def test_the_timeout_may_be_a_function(self):
        self.script('''
local slow = flow.shell("slow", { timeout = function(args) return args[1] == 1 and "300ms" or "10m" end,
  args = { "n" }, command = [[if [ {n} = 1 ]; then sleep 60; fi; echo {n}]] })
return flow.pipeline("limits", {}, function(p) return { slow(1).stdout, slow(2).stdout } end)''')
        self.exits(1, self.flow("run", "."), "timeout of 300ms")
        self.assertEqual(self.tasks()["slow#2"]["status"], "succeeded")

    def test_with_takes_functions_and_replaces_them(self):
        self.script('''
local t = flow.shell("t", { args = { "n" }, memory = function(args) return 1000000 * args[1] end, command = [[echo {memory}]] })
local wide = t:with { memory = function(args) return 2000000 * args[1] end }
return flow.pipeline("variants", {}, function(p)
  return { t(100).stdout, wide(101).stdout, t:with { memory = "300MB" }(1).stdout, wide:with { cpus = 1 }(200).stdout }
end)''')
        self.good("run", ".", "--fresh")
        self.assertEqual(self.show()["result"], ["100000000\n", "202000000\n", "300000000\n", "400000000\n"])

    def test_a_dynamic_task_calls_tasks_with_functions(self):
        self.script('''
local t = flow.shell("t", { args = { "n" }, memory = function(args) return 100000000 * args[1] end, command = [[echo {memory}]] })
local wide = t:with { memory = function(args) return 200000000 * args[1] end }
local choose = flow.dynamic("choose", function(ctx) return { t(1).stdout, wide(2).stdout } end)
return flow.pipeline("dynamic", {}, function(p) return choose() end)''')
        self.good("run", ".")
        self.assertEqual(self.show()["result"], ["100000000\n", "400000000\n"])

    def test_errors_fail_the_task_without_a_retry(self):
        for text, words in {
                'error("no idea")': ["pipeline.lua:5: no idea"],
                'return "lots"': ["pipeline.lua:5:", "`memory`", "lots"],
                'return nil': ["`memory` must be a size", "nil"],
                'return 0': ["`memory` must be a size"],
                'return os.time()': ["os.time"],
                'return math.random(10)': ["a resource function has no random numbers"],
                'return flow.randint(1, 9, { 1 })[1]': ["a resource function has no random numbers"],
                'while true do end': ["took longer than 1 s"],
                'return "9000TiB"': ["asks for 8.8 PiB of memory, and this machine has"]}.items():
            self.script('''
local t = flow.task("t", { retries = 3,
  memory = function(args) %s end }, function(ctx) return 1 end)
return flow.pipeline("errors", {}, function(p) return t() end)''' % text)
            self.exits(1, self.flow("run", "."), *words)
            self.assertEqual(self.tasks()["t"]["attempts"], 0, text)

    def test_wrong_uses_are_errors_of_the_script(self):
        for options, words in {
                'ranks = function() return 2 end': ["`ranks` must be a whole number"],
                'memory = function() end, retries = { oom = { max = 1, memory = "x2" } }': ["retries.oom.memory"]}.items():
            self.script('''
local t = flow.task("t", { %s }, function(ctx) return 1 end)
return flow.pipeline("wrong", {}, function(p) return t() end)''' % options)
            self.exits(2, self.flow("run", "."), *words)
        self.script('''
local t = flow.task("t", { memory = function() return "1G" end }, function(ctx) return 1 end)
return flow.pipeline("wrong", {}, function(p) return t:with { retries = { oom = { max = 1, memory = "x3" } } }() end)''')
        self.exits(2, self.flow("run", "."), "pipeline.lua:4", "retries.oom.memory")

    def test_many_instances_share_few_calls_and_results_are_cached(self):
        self.script('''
local work = flow.task("work", { cpus = function(args) return args[1] % 2 + 0.5 end }, function(ctx, n) return n end)
local list = flow.task("list", function() local all = {} for i = 1, 2000 do all[i] = i end return all end)
return flow.pipeline("many", {}, function(p) return flow.map(work, list()) end)''')
        self.good("run", ".", "--jobs", "4")
        self.assertEqual(self.show()["counts"]["succeeded"], 2001)
        self.good("run", ".", "--jobs", "4")
        self.assertEqual(self.show()["counts"]["cached"], 2001)

    def test_what_was_computed_survives_a_crash(self):
        self.script('''
local gate = flow.shell("gate", { command = [[echo {memory} >> FOLDER/asked; echo run >> FOLDER/gate.started; while [ ! -e FOLDER/gate ]; do sleep 0.05; done; echo {memory}]],
  memory = function(args, attempt) return attempt * 100000000 end })
return flow.pipeline("crash", {}, function(p) return gate().stdout end)''')
        process = self.start("run", ".")
        self.until_holds("run")
        self.kill(process)
        self.open("gate")
        self.good("resume")
        self.assertEqual(self.show()["result"], "200000000\n")
        self.assertEqual(self.read("asked").split(), ["100000000", "200000000"])

    def test_a_run_that_is_stopped_while_functions_run_resumes(self):
        self.script('''
local t = flow.task("t", { memory = function(args) local s = 0 for i = 1, 3e5 do s = s + i end return "100M" end }, function(ctx, n) return n end)
return flow.pipeline("stopped", {}, function(p) return { t(1), t(2), t(3) } end)''')
        process = self.start("run", ".")
        self.until("the run exists", lambda: len(self.runs()) == 1)
        process.send_signal(signal.SIGINT)
        self.end(process)
        self.flow("resume")
        self.assertEqual(self.show()["result"], [1, 2, 3])


if __name__ == "__main__":
    main()
