#!/usr/bin/env python3
"""GPUs that fail while attempts use them, on machines with a fake of the driver's library.

usage: FLOW_TEST_NVML=LIBRARY gpu_faults.py --flow BIN [TEST...]
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
from cluster_place import ClusterPlace, place

A = "gpu GPU-aa11 81559 NVIDIA H100\n"
B = "gpu GPU-bb22 143771 NVIDIA H200\n"
FELL = "fell off the bus (Xid 79)"
# Prints its GPU, and ends once the file exists: with an error on GPU-aa11 if it is to fail there.
HOLDS = r'''
local flow = require "flow"
local holds = flow.shell("holds", { gpus = 1, retries = 0, args = { "path", "label" },
  command = [[: {label}; echo $CUDA_VISIBLE_DEVICES >> {path}.started; while [ ! -e {path} ]; do sleep 0.05; done
    if [ -e {path}.fails ] && [ $CUDA_VISIBLE_DEVICES = GPU-aa11 ]; then echo 'device-side error' >&2; exit 3; fi
    echo $CUDA_VISIBLE_DEVICES]] })
'''


class GpuFaults(ClusterPlace):
    def setUp(self):
        super().setUp()
        self.env.pop("CUDA_VISIBLE_DEVICES", None)
        self.env["FLOW_NVML_LIB"] = os.environ["FLOW_TEST_NVML"]
        self.set_gpus("own", A + B)
        self.env["FLOW_FAKE_NVML"] = self.path("gpus-own")

    def set_gpus(self, machine, text):
        """Atomic, because the file may be read at any time."""
        self.write("gpus.new", text)
        os.rename(self.path("gpus.new"), self.path("gpus-" + machine))

    def start_on(self, machine, *words):
        if machine == "head":
            self.set_gpus("head", "")
        return self.start(*words, FLOW_FAKE_NVML=self.path("gpus-" + machine))

    def script(self, tasks=1):
        calls = ", ".join('holds("%s", %d).stdout' % (self.path("gate"), i) for i in range(tasks))
        self.write("p.lua", HOLDS + 'return flow.pipeline("p", {}, function() return { %s } end)\n' % calls)

    def fault_of(self, node, uuid):
        [gpu] = [gpu for gpu in self.nodes()[node]["gpus"] if gpu["uuid"] == uuid]
        return gpu["fault"]

    def until_fails(self, uuid, node=None):
        self.until(uuid + " fails", lambda: self.fault_of(node, uuid) is not None)

    def begun(self):
        return self.read("gate.started").split()

    def test_tasks_on_a_gpu_that_fell_off_the_bus_move_without_using_a_retry_and_it_gets_no_more(self):
        self.script()
        run = self.start("run", "p.lua", "--jobs", "4")
        self.until_holds("GPU-aa11")
        self.set_gpus("own", A + B + "xid 0 79\n")
        self.until_holds("GPU-bb22")
        self.assertEqual((self.fault_of(None, "GPU-aa11"), self.fault_of(None, "GPU-bb22")), (FELL, None))
        self.assertIn("GPU-aa11 %s: not used until its engine starts again" % FELL, self.good("nodes").out)
        self.assertIn("Attempt 1 failed: gpu_fault: GPU-aa11 (NVIDIA H100), which it ran on, " + FELL,
                      self.good("why", "last", "holds").out)
        self.assertIn("GPU-aa11 %s: not used until its engine starts again" % FELL, self.good("doctor").out)
        self.write("q.lua", HOLDS.replace('"holds"', '"next"') +
                   'return flow.pipeline("q", {}, function() return holds("%s", 0).stdout end)\n' % self.path("gate"))
        follower = self.start("run", "q.lua")
        self.until("q waits", lambda: any(run["pipeline"] == "q" for run in self.runs()))
        why = self.good("why", "last", "next").out
        self.assertIn("0 of 1 are free: GPU 1 has 0 free, held by `holds`", why)
        self.assertIn("GPU 0 (GPU-aa11) %s, and is not used until its engine starts again" % FELL, why)
        first = [run["run"] for run in self.runs() if run["pipeline"] == "p"][0]
        self.open("gate")
        self.exits(0, self.end(run))
        self.exits(0, self.end(follower))
        self.assertEqual(self.begun(), ["GPU-aa11", "GPU-bb22", "GPU-bb22"])
        self.assertEqual(self.tasks(first)["holds"]["attempts"], 2)

    def test_an_error_of_a_program_does_not_exclude_a_gpu(self):
        self.script()
        run = self.start("run", "p.lua")
        self.until_holds("GPU-aa11")
        self.set_gpus("own", A + B + "xid 0 13\nxid 0 31\nxid 0 43\nxid 0 45\nxid 0 68\nxid 0 999\nxid 1 gone\n")
        self.until_fails("GPU-bb22")  # which was reported after them
        self.assertEqual(self.fault_of(None, "GPU-bb22"), "is lost to its driver")
        self.assertIsNone(self.fault_of(None, "GPU-aa11"))
        self.open("gate")
        self.exits(0, self.end(run))
        self.assertEqual(self.begun(), ["GPU-aa11"])

    def test_tasks_on_a_worn_gpu_continue_and_their_errors_are_gpu_faults(self):
        self.script(2)
        self.open("gate.fails")
        run = self.start("run", "p.lua", "--jobs", "4")
        self.until_holds("GPU-aa11")
        self.until_holds("GPU-bb22")
        self.set_gpus("own", A + B + "xid 0 94\n")
        self.until_fails("GPU-aa11")
        self.open("gate")
        self.exits(0, self.end(run))
        self.assertEqual(self.show()["result"], ["GPU-bb22\n"] * 2)
        self.assertEqual(sorted(self.begun()), ["GPU-aa11", "GPU-bb22", "GPU-bb22"])
        [task] = [task for task in self.tasks().values() if task["attempts"] == 2]
        self.assertIn("gpu_fault: GPU-aa11 (NVIDIA H100), which it ran on, had a contained memory error "
                      "(Xid 94)", self.good("why", "last", task["name"]).out)

    def test_without_another_gpu_a_run_ends_and_continues_when_there_is_one(self):
        self.set_gpus("own", A)
        self.script()
        run = self.start("run", "p.lua")
        self.until_holds("GPU-aa11")
        self.set_gpus("own", A + "xid 0 79\n")
        done = self.exits(1, self.end(run))
        self.assertIn("`holds` asks for gpus = 1, and 0 of this machine's 1 GPUs are suitable: GPU 0 (NVIDIA H100, 79.6 GiB), "
                      "which %s" % FELL, done.err)
        self.assertIn("cause: gpu_fault", self.good("why", "last", "holds").out)
        self.set_gpus("own", A)
        self.open("gate")
        self.good("resume", "last")
        self.assertEqual(self.show()["result"], ["GPU-aa11\n"])

    def workers_that_hold(self):
        """Starts the head, the workers a and b with one GPU each, and a run that occupies the GPU
        of a."""
        self.set_gpus("a", A)
        self.set_gpus("b", B)
        self.head()
        self.worker("a")
        self.until_status("a", "up")
        self.script()
        client = self.start("run", "p.lua", "--json")
        self.until_holds("GPU-aa11")
        self.worker("b")
        self.until_status("b", "up")
        return client

    def test_a_worker_reports_its_failed_gpu_until_it_is_restarted(self):
        client = self.workers_that_hold()
        self.set_gpus("a", A + "xid 0 79\n")
        self.until_holds("GPU-bb22")
        self.assertEqual((self.fault_of("a", "GPU-aa11"), self.fault_of("b", "GPU-bb22")), (FELL, None))
        self.assertIn("GPU-aa11 %s: not used until its worker starts again" % FELL, self.good("nodes").out)
        self.assertIn("`a`: GPU-aa11 %s: not used until its worker starts again" % FELL, self.good("doctor").out)
        self.assertIn("GPU-aa11 (NVIDIA H100) of the worker `a`, which it ran on, " + FELL,
                      self.good("why", "last", "holds").out)
        self.open("gate")
        [task] = self.last_json(self.exits(0, self.end(client)))["tasks"]
        self.assertEqual((task["attempts"], task["gpus"]), (2, ["GPU-bb22"]))
        self.set_gpus("a", A)
        self.kill(self.workers["a"])
        self.until("a is gone", lambda: self.nodes()["a"]["status"] != "up")
        self.worker("a")
        self.until_status("a", "up")
        self.assertIsNone(self.fault_of("a", "GPU-aa11"))

    def test_a_gpu_failure_without_a_head_is_reported_to_the_next_one(self):
        client = self.workers_that_hold()
        self.kill(client)
        self.kill(self.head_process)
        self.set_gpus("a", A + "xid 0 79\n")
        log = self.workers["a"].stdout
        for line in log:
            if "GPU-aa11 (NVIDIA H100) %s: it is not used until this worker starts again" % FELL in line:
                break
        else:
            self.fail("the worker ended without a word of its GPU")
        self.head()
        client = self.start("resume", "last", "--json")
        self.until_holds("GPU-bb22")
        self.assertEqual(self.fault_of("a", "GPU-aa11"), FELL)
        self.open("gate")
        [task] = self.last_json(self.exits(0, self.end(client)))["tasks"]
        self.assertEqual((task["attempts"], task["gpus"]), (2, ["GPU-bb22"]))
        self.assertIn("gpu_fault", self.good("why", "last", "holds").out)

    def test_a_gpu_that_two_workers_offer_counts_once_and_is_reported(self):
        self.set_gpus("a", A)
        self.set_gpus("b", A + B)
        self.head()
        self.worker("a")
        self.until_status("a", "up")
        self.worker("b")
        self.until_status("b", "up")
        nodes = self.nodes()
        self.assertEqual([[gpu["uuid"] for gpu in nodes[name]["gpus"]] for name in ("a", "b")], [["GPU-aa11"], ["GPU-bb22"]])
        said = "it also offers GPU-aa11, which counts for `a`: give each worker of a machine its own GPUs with CUDA_VISIBLE_DEVICES"
        self.assertNotIn("GPU-aa11", nodes["a"]["note"] or "")
        self.assertIn(said, nodes["b"]["note"])
        self.assertIn(said, self.good("nodes").out)
        self.assertIn("`b`: " + said, self.good("doctor").out)
        self.script(3)
        client = self.start("run", "p.lua", "--json")
        self.until_holds("GPU-aa11")
        self.until_holds("GPU-bb22")
        # The third task waits for one of them, although the machine seems to have a third GPU.
        self.assertEqual(sorted(self.begun()), ["GPU-aa11", "GPU-bb22"])
        self.assertEqual(sorted(task["status"] for task in self.tasks().values()), ["ready", "running", "running"])
        self.open("gate")
        self.exits(0, self.end(client))
        self.assertIn("worker `b`: " + said, self.kill(self.head_process).err)

    def test_a_gpu_of_a_lost_worker_goes_to_one_that_offered_it_too(self):
        self.set_gpus("a", A)
        self.set_gpus("b", A + B)
        self.head("--lost-after", "2s")
        self.worker("a")
        self.until_status("a", "up")
        self.worker("b")
        self.until_status("b", "up")
        self.script(2)
        client = self.start("run", "p.lua", "--json")
        self.until_holds("GPU-aa11")
        self.until_holds("GPU-bb22")
        self.kill(self.workers["a"])
        self.until("b has both", lambda: [gpu["uuid"] for gpu in self.nodes()["b"]["gpus"]] == ["GPU-bb22", "GPU-aa11"])
        self.assertNotIn("GPU-aa11", self.nodes()["b"]["note"] or "")
        self.until("both run on b", lambda: [task["worker"] for task in self.tasks().values() if task["status"] == "running"] == ["b", "b"])
        # The first worker is back: the task stays on the other one.
        self.worker("a")
        self.until_status("a", "up")
        self.assertEqual(self.nodes()["a"]["gpus"], [])
        self.open("gate")
        self.exits(0, self.end(client))
        self.assertIn("worker `b`: it has GPU-aa11 now: the worker that had it is gone", self.kill(self.head_process).err)


place.main()
