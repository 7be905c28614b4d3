#!/usr/bin/env python3
"""Checkpoints with tensors are complete files, whenever the engine is killed; only the newest is
kept."""
import json
import os
import pathlib
import random
import struct
import time

import place

KILLS = 8
STEPS = 400
SCRIPT = r'''
local flow = require "flow"
local train = flow.task("train", { retries = 0 }, function(ctx, count, megabytes, gate)
  local state = ctx:restore() or { step = 0, model = { weight = flow.zeros({ megabytes, 262144 }, "f32") } }
  -- A state that is half old and half new would not be the same everywhere.
  if tostring(state.model.weight:min()) ~= tostring(state.model.weight:max()) or state.model.weight:max() ~= state.step then
    error("torn: " .. state.step .. " but " .. state.model.weight:min() .. " to " .. state.model.weight:max())
  end
  ctx:log("from %d", state.step)
  while state.step < count do
    state.step = state.step + 1
    state.model.weight:add_(1)
    ctx:checkpoint(state)
    if gate and state.step == 3 then while not flow.fs.exists(gate) do if ctx.stopping then ctx:checkpoint(state) end end end
  end
  return state.step
end)
return flow.pipeline("train", { count = flow.param.int { default = 40 }, mb = flow.param.int { default = 24 },
                                gate = flow.param.string { default = "" } }, function(p)
  return train(p.count, p.mb, p.gate ~= "" and p.gate or nil)
end)
'''


def header_of(path):
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + length]), data[8 + length:]


class Checkpoints(place.Place):
    def setUp(self):
        super().setUp()
        self.write("pipeline.lua", SCRIPT)

    def files(self):
        return sorted(str(p) for p in pathlib.Path(self.state, "checkpoints").rglob("*") if p.is_file())

    def test_a_run_that_is_killed_at_any_time_resumes_from_a_complete_checkpoint(self):
        run = self.start("run", ".", "--param", "count=%d" % STEPS)
        reached = []
        for _ in range(KILLS):
            self.until("a checkpoint", lambda: self.files() or run.poll() is not None)
            time.sleep(random.uniform(0.05, 0.6))
            if run.poll() is not None:
                break
            self.kill(run)
            self.end(run)
            finished = [f for f in self.files() if f.endswith(".safetensors")]
            self.assertLessEqual(len(finished), 3, finished)
            for name in finished:
                header, data = header_of(name)
                tensor = header["model.weight"]
                self.assertEqual(len(data), tensor["data_offsets"][1])
            reached.append(len(self.files()))
            run = self.start("resume", "last")
        done = self.end(run)
        self.exits(0, done)
        logs = self.good("logs", "last").out
        self.assertNotIn("torn", logs)
        self.assertEqual(self.show()["result"], STEPS)
        self.assertGreater(len(reached), 0)
        # At most one file, under its own name; nothing is left of the killed writes.
        self.assertLessEqual(len(self.files()), 1, self.files())

    def test_the_file_is_at_the_documented_path_and_holds_the_tensors_by_their_paths(self):
        run = self.start("run", ".", "--param", "mb=1", "--param", "gate=" + self.path("gate"))
        self.until("the third checkpoint", lambda: any(f.endswith("-3.safetensors") for f in self.files()))
        (name,) = [f for f in self.files() if f.endswith("-3.safetensors")]
        folder = os.path.relpath(name, self.state).split(os.sep)
        self.assertEqual(folder[0], "checkpoints")
        self.assertEqual(folder[1], self.show()["run"])
        self.assertTrue(folder[2].startswith("train.0-"), folder)
        header, data = header_of(name)
        self.assertEqual(header["model.weight"]["shape"], [1, 262144])
        self.assertEqual(data, struct.pack("<f", 3) * 262144)
        self.assertEqual(json.loads(header["__metadata__"]["state"]), {"model": {"weight": "model.weight"}, "step": 3})
        run.send_signal(2)
        self.exits(3, self.end(run))
        self.open("gate")
        self.exits(0, self.flow("resume", "last"))
        self.assertIn("from 3", self.good("logs", "last").out)

    def test_garbage_collection_removes_the_checkpoints_of_removed_runs_only(self):
        self.good("run", ".", "--param", "mb=1", "--param", "count=2")
        self.good("run", ".", "--param", "mb=1", "--param", "count=3")
        stray = pathlib.Path(self.state, "checkpoints", "20251126-174434-pxa9gs6", "stray.safetensors.tmp")
        stray.parent.mkdir(parents=True)
        stray.write_bytes(b"x")
        last = self.show()["run"]
        self.good("gc", "--keep", "1")
        left = {os.path.relpath(f, self.state).split(os.sep)[1] for f in self.files()}
        self.assertLessEqual(left, {last})
        self.assertFalse(stray.exists())

    def test_a_failed_write_ends_the_attempt_and_the_next_resumes_from_the_previous_checkpoint(self):
        # Enough steps that a write begins before the last one, on a busy machine too.
        run = self.start("run", ".", "--param", "count=%d" % STEPS, "--param", "mb=8", "--param", "gate=" + self.path("gate"))
        self.until("the third checkpoint", lambda: any(f.endswith("-3.safetensors") for f in self.files()))
        (name,) = [f for f in self.files() if f.endswith("-3.safetensors")]
        # Blocks the name, and is not empty when the write gets there: leftovers are removed.
        for number in range(4, STEPS + 1):
            made = self.path("made-%d" % number)
            os.makedirs(os.path.join(made, "x"))
            os.rename(made, name.replace("-3.safetensors", "-%d.safetensors.tmp" % number))
        self.open("gate")
        self.exits(0, self.end(run), "a checkpoint could not be written: cannot create `" + name[:-len("3.safetensors")])
        self.assertIn("from 3", self.good("logs", "last").out)
        self.assertEqual(self.show()["result"], STEPS)


if __name__ == "__main__":
    place.main()
