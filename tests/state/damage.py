#!/usr/bin/env python3
"""A state with wrong bytes: damage is named and never returned, and a torn log continues."""
import os
import pathlib
import random
import shutil

import place

SCRIPT = place.HOLD + r'''
local number = flow.task("number", function(ctx, i) return i * i end)
local large = flow.task("large", function(ctx) return string.rep("0123456789", 30000) end)
local sum = flow.task("sum", function(ctx, list, text, word)
  local total = 0
  for _, n in ipairs(list) do total = total + n end
  return { total = total, bytes = #text, word = word }
end)
return flow.pipeline("damage", { gate = flow.param.string {} }, function(p)
  local items = {}
  for i = 1, 30 do items[i] = i end
  local numbers, text = flow.map(number, items), large()
  return sum(numbers, text, hold(p.gate, "one"):after(numbers, text).stdout)
end)
'''
RESULT = {"total": 9455, "bytes": 300000, "word": "one\n"}
TORN_LOGS = 6


def contents(folder):
    return {str(p): p.read_bytes() for p in pathlib.Path(folder).rglob("*") if p.is_file()}


def flip(path, at):
    path = pathlib.Path(path)
    mode = path.stat().st_mode
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)
    path.chmod(mode)


class Damage(place.Place):
    def setUp(self):
        super().setUp()
        self.write("pipeline.lua", SCRIPT)
        self.attempts = {}  # of failed tasks

    def keep(self):
        shutil.copytree(self.state, self.path("whole"), ignore=shutil.ignore_patterns("socket"))

    def bring_back(self):
        shutil.rmtree(self.state)
        shutil.copytree(self.path("whole"), self.state)

    def killed_run(self):
        run = self.start("run", ".", "--param", "gate=" + self.path("gate"), "--jobs", "4")
        self.until_holds("one")
        self.kill(run)
        self.open("gate")

    def fails_at_once(self, done, task=None, digest="", is_damaged=True):
        """A retry cannot repair missing or damaged blobs: the task fails after one attempt with
        that error."""
        for word in ("damaged", "It was removed", digest) if is_damaged else ("does not hold", digest):
            self.assertIn(word, done.err, done)
        shown = self.show()
        failed = {each["name"]: each for each in shown["tasks"] if each["status"] == "failed"}
        for name, each in failed.items():
            self.assertLessEqual(each["attempts"], self.attempts.get((shown["run"], name), 0) + 1, done)
            self.attempts[shown["run"], name] = each["attempts"]
            if is_damaged and "it depends on" not in each["error"]:
                self.assertIn("damaged", each["error"])
                self.assertIn("damaged", self.good("why", "last", name).out)
        if task:
            self.assertIn(task, failed)

    def log(self):
        logs = sorted(pathlib.Path(self.state, "db").glob("*.log"), key=lambda p: p.stat().st_size)
        return logs[-1]

    def large(self):
        return next(p for p in pathlib.Path(self.state, "objects").rglob("*") if p.is_file()
                    and p.stat().st_size >= 300000)

    def test_a_flipped_byte_in_the_log_stops_every_verb(self):
        self.killed_run()
        log = self.log()
        flip(log, log.stat().st_size // 2)
        before = {p: b for p, b in contents(self.state).items() if "/db/" in p or "/objects/" in p}
        for words in (["run", ".", "--param", "gate=x"], ["resume"], ["show"], ["ls"], ["logs"], ["why"], ["gc"],
                      ["retry", "last"], ["cancel", "last"], ["signal", "last", "go"], ["get", "-o", "out"]):
            done = self.exits(4, self.flow(*words), str(log), "offset")
            self.assertEqual(done.out, "", words)
        after = {p: b for p, b in contents(self.state).items() if "/db/" in p or "/objects/" in p}
        self.assertEqual(sorted(before), sorted(after))
        self.assertEqual([p for p in before if before[p] != after[p]], [])
        flip(log, log.stat().st_size // 2)
        self.good("resume")
        self.assertEqual(self.show()["result"], RESULT)

    def test_a_log_that_is_truncated_anywhere_opens_at_its_last_complete_batch(self):
        self.killed_run()
        self.keep()
        size = self.log().stat().st_size
        seed = int(os.environ.get("FLOW_SEED", "1"))
        cuts = sorted(random.Random(seed).sample(range(1, size), TORN_LOGS)) + [size]
        last = -1  # succeeded tasks; a longer log never has fewer
        for cut in cuts:
            with self.subTest(seed=seed, cut=cut, size=size):
                self.bring_back()
                os.truncate(self.log(), cut)
                runs = self.runs()
                self.assertEqual(len(runs), 1 if last > 0 or cut == size else len(runs))
                if not runs:
                    self.good("run", ".", "--param", "gate=" + self.path("gate"))
                else:
                    before = {n: t["attempts"] for n, t in self.tasks().items() if t["status"] == "succeeded"}
                    self.assertGreaterEqual(len(before), last)
                    last = len(before)
                    self.good("resume")
                    after = {n: t["attempts"] for n, t in self.tasks().items()}
                    self.assertEqual(before, {n: after[n] for n in before})
                self.assertEqual(self.show()["result"], RESULT)

    def test_damaged_blobs_are_named_and_never_returned(self):
        self.killed_run()
        large = self.large()
        digest = large.parent.name + large.name
        whole = large.read_bytes()
        self.keep()
        cuts = {"flipped": lambda p: flip(p, 150000), "cut": lambda p: (p.chmod(0o600), os.truncate(p, 1000)),
                "gone": os.unlink}
        for name, harm in cuts.items():
            with self.subTest(name):
                self.bring_back()
                harm(large)
                done = self.flow("resume")
                shown = self.show()
                if done.code == 0:
                    self.assertEqual(shown["result"], RESULT)
                    self.assertEqual(large.read_bytes(), whole)
                else:
                    self.fails_at_once(done, "sum", digest, is_damaged=name != "gone")
                    self.assertNotIn(self.tasks()["sum"]["status"], ["succeeded"])
                    self.good("resume")
                    self.assertEqual(self.show()["result"], RESULT)
                # A new run computes the missing blob; it does not use the damaged one.
                again = self.flow("run", ".", "--fresh", "--param", "gate=" + self.path("gate"))
                self.exits(0, again)
                self.assertEqual(self.show()["result"], RESULT)
                self.assertEqual(large.read_bytes(), whole)

    def test_a_damaged_value_is_reported_and_computed_again(self):
        script = ('local flow = require "flow"\n'
                  'local make = flow.task("make", function(ctx, i) return string.rep("x", 200000) .. i end)\n'
                  'local size = flow.task("size", function(ctx, list) return #list[1] + SALT end)\n'
                  'return flow.pipeline("value", {}, function() RETURN end)\n')
        for name, body in (("one", "return make(7)"), ("joined", "return size(flow.map(make, { 1, 2 }))"),
                           ("passed", "return size { make(1), make(2) }")):
            with self.subTest(name):
                file = name + ".lua"
                self.write(file, script.replace("RETURN", body).replace("SALT", "0"))
                self.good("run", file)
                result = self.show()["result"]
                for path in pathlib.Path(self.state, "objects").rglob("*"):
                    if path.is_file():
                        flip(path, 1000)
                self.write(file, script.replace("RETURN", body).replace("SALT", "1"))
                done = self.flow("run", file)
                self.assertIn("is damaged", done.err, done)
                if name == "one":
                    self.assertIn("warning: the result is null", done.err)
                else:
                    self.exits(1, done, "error: `")
                    self.fails_at_once(done)
                for _ in range(4):  # each run finds one more damaged value
                    done = self.flow("run", file)
                    if "damaged" not in done.err:
                        break
                self.exits(0, done)
                wanted = result if name == "one" else result + 1
                self.assertEqual(self.show()["result"], wanted)

    def test_missing_blobs_are_computed_again_by_the_next_run_and_by_resume(self):
        """Tensors and files within results of a task, a map and a dynamic task."""
        script = r'''
local flow = require "flow"
local make = flow.task("make", function(ctx, n) return { x = flow.zeros(100, 1000) + n } end)
local some = flow.task("some", function(ctx) return { { x = flow.zeros(100, 1000) + 4 }, { x = flow.zeros(100, 1000) + 5 } } end)
local pass = flow.task("pass", function(ctx, x) return x end)
local add = flow.task("add", function(ctx, each) return each.x:sum() + SALT end)
local all = flow.dynamic("all", function(ctx, given) return { make(8), make(9), add(given) } end)
local file = flow.shell("file", { outputs = { f = "f" }, command = "head -c 200000 /dev/zero > {outputs.f}" })
local size = flow.shell("size", { args = { "f" }, command = "wc -c < {f}; : SALT" })
local sum = flow.task("sum", function(ctx, one, list, sums, more)
  local total = SALT + one.x:sum()
  for _, each in ipairs(list) do total = total + each.x:sum() end
  for _, each in ipairs(sums) do total = total + each end
  return total + more[1].x:sum() + more[2].x:sum() + more[3]
end)
return flow.pipeline("gone", {}, function()
  local sums = flow.map(add, some())
  return { sum(pass(pass(make(1))), flow.map(make, { 2, 3 }), sums, all(make(10))), size(file().f).stdout }
end)
'''
        wanted = (1 + 2 + 3 + 4 + 5 + 8 + 9 + 10) * 100000
        self.write("gone.lua", script.replace("SALT", "0"))
        self.good("run", "gone.lua")
        self.keep()
        harms = {"flipped": lambda path: flip(path, 1000), "cut": lambda path: (path.chmod(0o600), os.truncate(path, 10)),
                 "gone": os.unlink}
        for salt, (name, harm) in enumerate(harms.items(), 1):
            with self.subTest(name):
                self.bring_back()
                self.write("gone.lua", script.replace("SALT", str(salt)))
                for path in [p for p in pathlib.Path(self.state, "objects").rglob("*") if p.is_file()]:
                    harm(path)
                before = contents(os.path.join(self.state, "objects"))
                self.flow("plan", "gone.lua")
                self.assertEqual(contents(os.path.join(self.state, "objects")), before)
                done = self.flow("run", "gone.lua")
                tries = 0
                # Damage within a value is detected when it is read: by the next consumers, in the
                # next try.
                while done.code != 0:
                    self.fails_at_once(self.exits(1, done))
                    tries += 1
                    self.assertLessEqual(tries, 2 if name == "flipped" else 0)
                    done = self.flow("resume")
                self.assertEqual(self.show()["result"], [wanted + 4 * salt, "200000\n"])

    def test_a_damaged_copy_of_a_parameter_is_copied_again(self):
        self.write("given.lua", 'local flow = require "flow"\n'
                   'local size = flow.shell("size", { args = { "f", "n" }, command = "wc -c < {f}; echo {n}" })\n'
                   'return flow.pipeline("given", { f = flow.param.path {}, n = flow.param.int {} }, function(p)\n'
                   '  return size(p.f, p.n).stdout\n'
                   'end)\n')
        self.write("given", "x" * 300000)
        run = ("run", "given.lua", "--param", "f=given", "--param")
        self.good(*run, "n=1")
        copy = next(p for p in pathlib.Path(self.state, "objects").rglob("*") if p.is_file())
        copy.chmod(0o600)
        os.truncate(copy, 10)
        self.good(*run, "n=2")
        flip(copy, 1000)
        self.fails_at_once(self.exits(1, self.flow(*run, "n=3")), "size")
        self.good(*run, "n=3")
        self.assertEqual(self.show()["result"], "300000\n3\n")

    def test_an_input_that_a_task_wrote_into_is_copied_again_by_resume(self):
        """From the original file or folder, if it still has the same bytes."""
        self.write("spoil.lua", r'''
local flow = require "flow"
local spoil = flow.shell("spoil", { args = { "f", "d", "gate" }, command = [[
if [ ! -e {gate} ]; then for i in {f} {d}/in/b; do o=$(readlink -f $i); chmod u+w $o; echo more >> $o; done; fi
wc -c < {f}; wc -c < {d}/in/b]] })
return flow.pipeline("spoil", { f = flow.param.path {}, d = flow.param.path {}, gate = flow.param.string {} }, function(p)
  return spoil(p.f, p.d, p.gate).stdout
end)
''')
        run = ("run", "spoil.lua", "--param", "f=f", "--param", "d=d", "--param", "gate=" + self.path("gate"))
        os.makedirs(self.path("d", "in"))
        self.write("d/in/b", "b" * 200000)
        for name in ("unchanged", "changed"):
            with self.subTest(name):
                self.write("f", name[0] * 300000)
                self.exits(1, self.flow(*run), "was written to while the attempt ran")
                self.open("gate")
                if name == "unchanged":
                    self.assertNotIn("warning", self.good("resume").err)
                else:
                    self.write("f", "x" * 300000)
                    self.exits(1, self.flow("resume"), "warning: the state lost its copy of `f`", "--code new",
                               "is no longer in the state")
                    self.good("resume", "--code", "new")
                self.assertEqual(self.show()["result"], "300000\n200000\n")
                os.unlink(self.path("gate"))

    def test_a_damaged_file_is_not_returned(self):
        self.write("file.lua", 'local flow = require "flow"\n'
                   'local make = flow.shell("make", { outputs = { f = "f.bin" },\n'
                   '  command = "head -c 200000 /dev/zero > {outputs.f}" })\n'
                   'local size = flow.shell("size", { args = { "f", "n" }, command = "wc -c < {f}; echo {n}" })\n'
                   'return flow.pipeline("file", { n = flow.param.int {} }, function(p)\n'
                   '  local f = make().f\n'
                   '  return { f = f, size = size(f, p.n).stdout }\n'
                   'end)\n')
        self.good("run", "file.lua", "--param", "n=1")
        digest = self.show()["result"]["f"]["$file"]["digest"]
        flip(self.path(".flow/objects", digest[:2], digest[2:]), 1000)
        self.exits(4, self.flow("get", "last", "f", "-o", self.path("out")), digest)
        self.assertEqual(contents(self.path("out")), {})
        self.exits(1, self.flow("run", "file.lua", "--param", "n=2"), digest, "damaged")
        self.good("run", "file.lua", "--fresh", "--param", "n=2")
        self.good("get", "last", "f", "-o", self.path("out"))
        self.assertEqual([set(b) for b in contents(self.path("out")).values()], [{0}])


if __name__ == "__main__":
    place.main()
