#!/usr/bin/env python3
"""An unchanged torchrun script as a process gang: on one machine, on several workers, killed and
resumed."""
import json
import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "cluster"))
import cluster_place
from cluster_place import place

try:
    import torch
    import torch.distributed

    if not torch.distributed.is_available():
        raise ImportError("it is built without torch.distributed")
except ImportError as why:
    print("skipped: no PyTorch (%s): install python3-torch" % why)
    sys.exit(77)

PIPELINE = r'''
local flow = require "flow"
local train = flow.shell("train", { ranks = 2, retries = 2, args = { "script", "python", "checkpoint", "pause" },
  command = [[{python} {script} --checkpoint {checkpoint} --pause {pause} --out {outputs.weights}]],
  outputs = { weights = "weights.pt" } })
return flow.pipeline("ddp", { script = flow.param.path {}, python = flow.param.string {}, checkpoint = flow.param.string {}, pause = flow.param.number { default = 0 } },
  function(p) return train(p.script, p.python, p.checkpoint, p.pause).weights end)
'''


class Ddp(cluster_place.ClusterPlace):
    def words(self, checkpoint, pause=0):
        self.write("ddp.lua", PIPELINE)
        return ["run", "ddp.lua", "--json", "--param", "script=" + os.path.join(HERE, "ddp", "train.py"), "--param", "python=" + sys.executable,
                "--param", "checkpoint=" + self.path(checkpoint), "--param", "pause=%g" % pause]

    def weights(self, *where):
        """The losses that the newest run left."""
        self.good("get", "last", "-o", self.path("got"), *where)
        found = [os.path.join(folder, name) for folder, _, names in os.walk(self.path("got")) for name in names]
        weights = torch.load(found[0])
        os.remove(found[0])
        return weights

    def assert_same(self, left, right):
        self.assertEqual(left.keys(), right.keys())
        for name in left:
            self.assertTrue(torch.equal(left[name], right[name]), name)

    def alone(self):
        self.good(*self.words("alone.pt"), "--jobs", "2", "--state", "alone")
        return self.weights("--state", "alone")

    def test_one_machine(self):
        self.alone()
        logs = [line["text"] for line in self.good("logs", "--json", "--state", "alone").lines()]
        self.assertIn("rank 0 of 2 starts at step 0", logs)
        self.assertIn("rank 1 of 2 starts at step 0", logs)

    def test_a_killed_rank_restarts_all_ranks_from_the_checkpoint(self):
        alone = self.alone()
        self.cluster(["a", "b"], slots=1)
        client = self.start(*self.words("step.pt", 0.2))
        self.until("steps", lambda: self.step_of("step.pt") >= 3)
        self.kill(self.workers["b"])
        self.worker("c", slots=1)
        done = self.exits(0, self.end(client))
        self.assertEqual(json.loads(done.out.splitlines()[-1])["tasks"][0]["attempts"], 2, done)
        starts = [line["text"] for line in self.good("logs", "--json").lines() if "starts at step" in line["text"]]
        self.assertEqual(sum("step 0" in text for text in starts), 2, starts)
        self.assertEqual(len(starts), 4, starts)
        self.assert_same(self.weights(), alone)

    def test_a_killed_engine_resumes(self):
        alone = self.alone()
        client = self.start(*self.words("step.pt", 0.2), "--jobs", "2")
        self.until("steps", lambda: self.step_of("step.pt") >= 3)
        self.kill(client)
        self.good("resume", "last", "--jobs", "2")
        self.assert_same(self.weights(), alone)

    def step_of(self, name):
        try:
            return torch.load(self.path(name))["step"]
        except (OSError, EOFError, RuntimeError):
            return -1


if __name__ == "__main__":
    place.main()
