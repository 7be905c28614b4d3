#!/usr/bin/env python3
"""`flow gc` keeps everything that unfinished runs, waiting clients and the cache still need."""
import os
import pathlib
import signal

import place

SIZES = {"small": 20, "large": 300000}
SLOW = r'''
local flow = require "flow"
local make = flow.shell("make", { args = { "gate" }, outputs = { f = "f.bin" }, cache = false,
  command = [[echo on >> {gate}.started; while [ ! -e {gate} ]; do sleep 0.05; done; head -c 300000 /dev/zero > {outputs.f}]] })
return flow.pipeline("slow", { gate = flow.param.string {} }, function(p) return { f = make(p.gate).f } end)
'''
BRANCH = r'''
local flow = require "flow"
local ask = flow.task("ask", function(ctx) return ctx:wait("go") end)
local use = flow.task("use", function(ctx, f) return #flow.fs.read(f) end)
return flow.pipeline("branch", {}, function()
  local yes = ask()
  return { n = use(flow.when(yes, function() return flow.file("taken") end)), doc = flow.file("doc") }
end)
'''
BOTH = r'''
local flow = require "flow"
local both = flow.task("both", function(ctx)
  flow.fs.write(ctx.dir .. "/f", "small")
  return { text = ("x"):rep(100000), f = ctx:file("f") }
end)
return flow.pipeline("both", {}, function() return both() end)
'''
CALLS = r'''
local flow = require "flow"
local use = flow.task("use", { cache = false }, function(ctx, f, gate)
  if not flow.fs.exists(gate) then error("not yet") end
  return #flow.fs.read(f)
end)
local calls = flow.dynamic("calls", function(ctx, gate)
  flow.fs.write(ctx.dir .. "/f", ("w"):rep(SIZE))
  return { use(ctx:file("f"), gate) }
end)
return flow.pipeline("calls", { gate = flow.param.string {} }, function(p) return calls(p.gate) end)
'''


class Collection(place.Place):
    def age(self):
        """Makes all blobs old, so that age protects none."""
        for path in pathlib.Path(self.state, "objects").rglob("*"):
            if path.is_file():
                os.utime(path, (1e9, 1e9))

    def collect(self, keep="0"):
        self.age()
        self.good("gc", "--keep", keep)

    def test_foreign_files_behind_a_linked_folder_of_the_state_are_kept(self):
        self.write("pipeline.lua", BOTH)
        for name in ("objects", "checkpoints"):
            with self.subTest(name):
                self.good("run", ".", "--fresh")
                inside = pathlib.Path(self.state, name)
                disk = pathlib.Path(self.path("disk-" + name))
                if inside.exists():
                    inside.rename(disk)
                (disk / "photos").mkdir(parents=True)
                kept = [disk / "notes.txt", disk / "photos/p.jpg", disk / "ab"]
                for path in kept:
                    path.write_text("mine")
                    os.utime(path, (1e9, 1e9))
                (disk / "tmp-abc").write_text("of a process that was killed")
                inside.symlink_to(disk)
                self.collect()
                self.assertEqual([path.read_text() for path in kept], ["mine"] * 3)
                if name == "objects":
                    left = {path.name for path in disk.rglob("*") if path.is_file()}
                    self.assertEqual(left, {path.name for path in kept})

    def test_a_waiting_run_keeps_the_files_of_its_branches_and_its_result(self):
        for name, size in SIZES.items():
            with self.subTest(name):
                self.write("branch.lua", BRANCH)
                self.write("taken", name[0] * size)
                self.write("doc", name[1] * size)
                run = self.start("run", "branch.lua", "--out", "out-" + name)
                self.until_waits("ask")
                self.collect()
                os.unlink(self.path("taken"))
                os.unlink(self.path("doc"))
                if name == "small":  # continue in another process
                    run.send_signal(signal.SIGINT)
                    self.exits(3, self.end(run))
                    self.collect()
                    self.good("signal", "last", "go")
                    self.good("resume", "last", "-q")
                    self.good("get", "last", "-o", "out-" + name)
                else:
                    self.good("signal", "last", "go")
                    self.exits(0, self.end(run))
                self.assertEqual(self.show()["result"]["n"], size)
                self.assertEqual(self.read("out-" + name + "/doc"), name[1] * size)

    def test_young_files_are_kept_while_a_run_waits(self):
        self.write("branch.lua", BRANCH)
        self.write("taken", "t")
        self.write("doc", "d")
        run = self.start("run", "branch.lua")
        self.until_waits("ask")
        folder = os.path.join(self.state, "objects", "ab")
        os.makedirs(folder, exist_ok=True)
        young, old = (os.path.join(folder, letter * 62) for letter in "cd")
        for path in (young, old):
            with open(path, "w") as file:
                file.write("an attempt may have written it")
        os.utime(old, (1e9, 1e9))
        self.good("gc")
        self.assertEqual((os.path.exists(young), os.path.exists(old)), (True, False))
        self.good("signal", "last", "go")
        self.exits(0, self.end(run))
        self.good("gc")
        self.assertFalse(os.path.exists(young))

    def test_a_failed_run_keeps_the_inputs_of_the_calls_of_a_dynamic_task(self):
        for name, size in SIZES.items():
            with self.subTest(name):
                self.write("calls.lua", CALLS.replace("SIZE", str(size)))
                gate = self.path("gate-" + name)
                self.exits(1, self.flow("run", "calls.lua", "--param", "gate=" + gate), "not yet")
                self.collect("20")
                self.write("gate-" + name, "")
                self.good("resume")
                self.assertEqual(self.show()["result"], [size])
                self.collect("20")
                self.good("run", "calls.lua", "--param", "gate=" + gate)
                self.assertEqual(self.show()["result"], [size])
                self.assertTrue(self.tasks()["calls"]["cached"])
                self.collect("1")  # the run with the cache hit keeps the entry
                self.good("run", "calls.lua", "--param", "gate=" + gate)
                self.assertTrue(self.tasks()["calls"]["cached"])

    def test_a_run_that_a_client_has_not_read_yet_is_kept(self):
        self.write("slow.lua", SLOW)
        writer = self.start("run", "slow.lua", "--param", "gate=" + self.path("gate"))
        self.until_holds("on")
        client = self.start("run", "slow.lua", "--param", "gate=" + self.path("client"), "--out", "out")
        self.until_holds("on", "client")
        run = self.show()["run"]
        client.send_signal(signal.SIGSTOP)
        self.open("client")
        self.until("the client's run ends", lambda: self.show(run)["status"] == "succeeded")
        self.collect()
        client.send_signal(signal.SIGCONT)
        self.exits(0, self.end(client))
        self.assertEqual(os.path.getsize(self.path("out", "f.bin")), 300000)
        self.until("nobody needs it", lambda: (self.good("gc", "--keep", "0"), self.flow("show", run).code == 2)[1])
        self.open("gate")
        self.exits(0, self.end(writer))

    def test_nothing_is_collected_if_blobs_cannot_be_read(self):
        self.write("both.lua", BOTH)
        self.good("run", "both.lua")
        objects = os.path.join(self.state, "objects")
        os.rename(objects, objects + ".away")
        self.open(objects)  # as with an unmounted disk
        self.exits(4, self.flow("gc"), "can't be read", "Nothing was collected")
        os.unlink(objects)
        os.rename(objects + ".away", objects)
        self.good("gc")
        self.good("get", "last", "f", "-o", "out")
        self.assertEqual(self.read("out/f"), "small")


if __name__ == "__main__":
    place.main()
