#!/usr/bin/env python3
"""Why the GPUs of workers were idle, and what was sent between machines, with a fake of the driver's library.

usage: FLOW_TEST_NVML=LIBRARY idle_gpus.py --flow BIN [TEST...]
"""
import datetime
import os
import time

import cluster_place
from cluster_place import place

DATA_BYTES = 3_000_000
# `one` takes a GPU of the worker that has two, so that `wide` waits although two are free. Of `train`, the rank that does
# not sleep waits for the other one.
SCRIPT = r'''
local flow = require "flow"
local nap = flow.shell("nap", { command = "sleep 1" })
local one = flow.shell("one", { gpus = 1, gpu = "H200", args = { "path" },
  command = [[echo one >> {path}.started; while [ ! -e {path} ]; do sleep 0.05; done]] })
local later = flow.shell("later", { args = { "path" }, command = [[while [ ! -e {path}.started ]; do sleep 0.05; done]] })
local wide = flow.shell("wide", { gpus = 2, command = "true" })
local train = flow.shell("train", { ranks = 2, gpus = 1, command = [[if [ {rank} = 1 ]; then sleep 1; fi]] })
local make = flow.shell("make", { gpus = 1, gpu = "A1", outputs = { data = "data" },
  command = [[head -c BYTES /dev/urandom > {outputs.data}]] })
local read = flow.shell("read", { gpus = 1, gpu = "H200", args = { "data" }, command = [[wc -c < {data}]] })
return flow.pipeline("idle", { gate = flow.param.string {} }, function(p)
  local first = nap()
  local narrow = one(p.gate):after(first)
  local wait = wide():after(later(p.gate):after(first))
  local trained = train():after(wait, narrow)
  return { narrow.stdout, trained.stdout, read(make():after(trained).data).stdout }
end)
'''.replace("BYTES", str(DATA_BYTES))


class IdleGpus(cluster_place.ClusterPlace):
    def setUp(self):
        super().setUp()
        self.env.pop("CUDA_VISIBLE_DEVICES", None)
        self.env["FLOW_NVML_LIB"] = os.environ["FLOW_TEST_NVML"]
        self.machine("head", "")

    def machine(self, name, text):
        """The GPUs of the processes that start from here on."""
        self.write("gpus-" + name, text)
        self.env["FLOW_FAKE_NVML"] = self.path("gpus-" + name)

    def cluster_with_gpus(self):
        self.head()
        for name, text in (("two", "gpu GPU-aa11 143771 NVIDIA H200\ngpu GPU-bb22 143771 NVIDIA H200\n"),
                           ("one", "gpu GPU-cc33 1024 NVIDIA A1\n")):
            self.machine(name, text)
            self.worker(name, slots=4)
            self.until_status(name, "up")
        self.machine("head", "")

    def total(self):
        return self.good("cost", "--json").lines()[0]["total"]

    def fragmented_s(self):
        return self.total()["gpu_hours"]["idle"]["fragmentation"] * 3600

    def run_until_wide_waits(self):
        self.write("idle.lua", SCRIPT)
        client = self.start("run", "idle.lua", "--json", "--param", "gate=" + self.path("gate"))
        self.until_holds("one")
        self.until("`wide` waits", lambda: self.tasks().get("wide", {}).get("status") == "ready")
        return client

    def test_idle_gpus_and_traffic_by_cause(self):
        self.write("flow.toml", '[prices]\ncurrency = "USD"\negress_gb = 50\n')
        self.cluster_with_gpus()
        client = self.run_until_wide_waits()
        before = self.fragmented_s()
        self.until("two GPUs were free for a second", lambda: self.fragmented_s() > before + 2)
        self.open("gate")
        done = self.exits(0, self.end(client))
        self.assertEqual(self.last_json(done)["result"][2].strip(), str(DATA_BYTES))
        tasks, total = self.tasks(), self.total()
        idle = {cause: hours * 3600 for cause, hours in total["gpu_hours"]["idle"].items() if hours is not None}
        # Two GPUs were free while `wide` waited; it got them some milliseconds after that.
        wide = tasks["wide"]["queue_s"]
        self.assertGreater(wide, 1)
        self.assertTrue(2 * wide - 0.1 <= idle["fragmentation"] <= 2 * wide + 1, (idle, wide))
        # All three were free during `nap`, and some in the other tasks.
        nap = tasks["nap"]["duration_s"]
        held = total["gpu_hours"]["held"] * 3600
        run = self.show()
        begin, end = (datetime.datetime.fromisoformat(run[name].replace("Z", "+00:00")) for name in ("started", "finished"))
        span = (end - begin).total_seconds()
        self.assertGreater(idle["queue_empty"], 3 * nap)
        self.assertLessEqual(idle["queue_empty"] + idle["fragmentation"] + held, 3 * span + 0.1)
        # A rank of `train` waited for the other one, which slept for 1 s, and it held one GPU.
        self.assertTrue(0.9 <= idle["rank"] <= tasks["train"]["duration_s"] * 2, (idle, tasks["train"]))
        rows = {row["name"]: row for row in self.good("cost", "--json").lines()[0]["rows"]}
        self.assertAlmostEqual(rows["train"]["gpu_hours"]["idle"]["rank"] * 3600, idle["rank"], 6)
        self.assertEqual(rows["one"]["gpu_hours"]["idle"]["rank"], 0)
        # The head fetched the data from the worker of `make`, and that of `read` fetched it from one of them.
        self.assertAlmostEqual(total["egress_gb"], 2 * DATA_BYTES / 1e9, 8)
        self.assertEqual([rows[name]["egress_gb"] for name in ("make", "read", "wide")], [DATA_BYTES / 1e9, DATA_BYTES / 1e9, 0])
        self.assertAlmostEqual(total["egress_amount"], 50 * total["egress_gb"], 6)
        text = self.good("cost").out
        for line in ("GPUs of ranks waited for other ranks: ", "GPUs were free, but did not suit a task that waited: ",
                     "GPUs idle while no task waited for one: ", "sent between machines: 0.006 GB, 0.3 USD"):
            self.assertIn(line, text)
        # What is known of it outlasts the head and its workers.
        for process in [*self.workers.values(), self.head_process]:
            process.terminate()
            self.end(process)
        self.assertEqual(self.total()["gpu_hours"], total["gpu_hours"])

    def test_gpus_are_idle_while_their_worker_is_there(self):
        self.cluster_with_gpus()
        client = self.run_until_wide_waits()
        self.workers.pop("one").terminate()  # its GPU was free
        self.until("it has left", lambda: self.nodes().get("one", {}).get("status") != "up")
        began, before = time.monotonic(), self.fragmented_s()
        self.until("the other worker's GPU is idle", lambda: self.fragmented_s() > before + 3)
        more, passed = self.fragmented_s() - before, time.monotonic() - began
        self.assertLess(more, 1.05 * passed)  # one GPU, and no longer two
        self.open("gate")
        client.terminate()
        self.end(client)


if __name__ == "__main__":
    place.main()
