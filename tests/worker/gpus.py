#!/usr/bin/env python3
"""Tasks that request GPUs, on machines with a fake of the driver's library.

usage: FLOW_TEST_NVML=LIBRARY gpus.py --flow BIN [TEST...]
"""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, Place, main  # noqa: E402

ONE = "gpu GPU-aa11 81559 NVIDIA H100 80GB HBM3\n"
TWO = ONE + "gpu GPU-bb22 143771 NVIDIA H200\n"
HEAD = 'local flow = require "flow"\n'
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Gpus(Place):
    def setUp(self):
        super().setUp()
        self.env.pop(VISIBLE, None)
        self.env.update(FLOW_NVML_LIB=os.environ["FLOW_TEST_NVML"], FLOW_FAKE_NVML=self.path("machine"))
        self.machine(ONE)

    def machine(self, text):
        self.write("machine", text)

    def pipeline(self, text, body):
        self.write("p.lua", HOLD.lstrip() + text + 'return flow.pipeline("p", {}, function() %s end)\n' % body)

    def result(self, *words, **env):
        self.good("run", "p.lua", *words, **env)
        return self.show()["result"]

    def gpus(self, task):
        return self.tasks()[task].get("gpus")

    def test_halves_of_one_gpu_run_together(self):
        # Each waits for the file of the other.
        self.pipeline(r'''
local meet = flow.shell("meet", { gpus = 0.5, args = { "own", "other" },
  command = [[touch {own}; while [ ! -e {other} ]; do sleep 0.02; done; echo {gpus} $CUDA_VISIBLE_DEVICES]] })
''', 'local a, b = "%s", "%s" return { meet(a, b).stdout, meet(b, a).stdout }' % (self.path("a"), self.path("b")))
        self.assertEqual(self.result("--jobs", "2"), ["0.5 GPU-aa11\n"] * 2)
        self.assertEqual((self.gpus("meet"), self.gpus("meet#2")), (["GPU-aa11"], ["GPU-aa11"]))
        self.assertIn("on GPU-aa11", self.good("show").out)

    def test_gpus_that_were_free_without_a_queue_are_reported(self):
        self.machine(TWO)
        self.pipeline(r'''
local narrow = flow.shell("narrow", { gpus = 1, command = "sleep 0.5" })
local wide = flow.shell("wide", { gpus = 2, command = "sleep 0.1" })
local nap = flow.shell("nap", { command = "sleep 0.4" })
''', """local first = narrow()
local second = nap():after(first)
return { first.stdout, second.stdout, wide():after(second).stdout }""")
        self.good("run", "p.lua", "--jobs", "2")
        narrow, nap = self.tasks()["narrow"], self.tasks()["nap"]
        gpus = self.good("cost", "--json").lines()[0]["total"]["gpu_hours"]
        seconds = narrow["duration_s"] + 2 * (nap["duration_s"] + nap["queue_s"])
        self.assertAlmostEqual(3600 * gpus["idle"]["queue_empty"], seconds, delta=0.02)
        self.assertEqual(gpus["idle"]["rank"], 0)
        self.assertLess(3600 * gpus["idle"]["fragmentation"], 0.1)  # until each task was assigned
        rows = self.good("cost", "--json").lines()[0]["rows"]
        self.assertEqual({row["gpu_hours"]["idle"]["queue_empty"] for row in rows}, {None})
        self.assertIn("GPUs idle while no task waited for one: ", self.good("cost").out)

    def test_gpus_are_not_free_without_a_queue_while_a_task_waits_for_more(self):
        self.machine(TWO)
        gate = self.path("gate")
        self.pipeline(r'''
local narrow = flow.shell("narrow", { gpus = 1, args = { "path" },
  command = [[echo narrow >> {path}.started; while [ ! -e {path} ]; do sleep 0.05; done]] })
local later = flow.shell("later", { args = { "path" }, command = [[while [ ! -e {path}.started ]; do sleep 0.05; done]] })
local wide = flow.shell("wide", { gpus = 2, command = "true" })
''', 'return { narrow("%s").stdout, wide():after(later("%s")).stdout }' % (gate, gate))
        run = self.start("run", "p.lua", "--jobs", "2")
        self.until_holds("narrow")
        self.until("wide waits", lambda: self.tasks()["wide"]["status"] == "ready")
        self.open("gate")
        self.exits(0, self.end(run))
        narrow, wide = self.tasks()["narrow"], self.tasks()["wide"]
        empty = 3600 * self.good("cost", "--json").lines()[0]["total"]["gpu_hours"]["idle"]["queue_empty"]
        self.assertGreater(wide["queue_s"], 0)
        self.assertAlmostEqual(empty, narrow["duration_s"] - wide["queue_s"], delta=0.02)
        idle = self.good("cost", "--json").lines()[0]["total"]["gpu_hours"]["idle"]
        self.assertAlmostEqual(3600 * idle["fragmentation"], wide["queue_s"], delta=0.1)
        self.assertIn("GPUs were free, but did not suit a task that waited: ", self.good("cost").out)

    def test_the_use_and_the_energy_of_gpus_are_recorded(self):
        self.machine(ONE + "load 50 1000 60 200000\ngpu GPU-bb22 143771 NVIDIA H200\nload 80 1000 60 400000\nenergy\n"
                     "gpu GPU-cc33 100 NVIDIA A1\n")
        self.pipeline(r'''
local half = flow.shell("half", { gpus = 1, gpu = "H100", command = "sleep 1.5" })
local busy = flow.shell("busy", { gpus = 1, gpu = "H200", command = "sleep 0.5" })
local blind = flow.shell("blind", { gpus = 1, gpu = "A1", command = "true" })
local none = flow.shell("none", { command = "true" })
''', "return { half().stdout, busy().stdout, blind().stdout, none().stdout }")
        self.good("run", "p.lua", "--jobs", "4")
        tasks = self.tasks()
        half, busy = tasks["half"], tasks["busy"]
        self.assertAlmostEqual(half["gpu_used_s"] / half["gpu_measured_s"], 0.5, 4)
        self.assertAlmostEqual(half["gpu_energy_j"] / half["gpu_measured_s"], 200, 2)
        self.assertTrue(1.5 <= half["gpu_measured_s"] <= half["gpu_s"] + 0.001, half)
        self.assertAlmostEqual(busy["gpu_used_s"] / busy["gpu_measured_s"], 0.8, 4)
        self.assertTrue(0.5 * 400 * 0.99 <= busy["gpu_energy_j"] <= busy["gpu_s"] * 400 * 1.01 + 1, busy)
        self.assertEqual([tasks["blind"][name] for name in ("gpu_used_s", "gpu_measured_s", "gpu_energy_j")], [None] * 3)
        self.assertEqual([tasks["none"][name] for name in ("gpu_used_s", "gpu_measured_s", "gpu_energy_j")], [0] * 3)
        self.assertIn("GPUs used at 50%", self.good("show", "last", "half").out)
        report = self.good("cost", "--json").lines()[0]
        rows = {row["name"]: row for row in report["rows"]}
        hours = rows["half"]["gpu_hours"]
        self.assertAlmostEqual(hours["used"], half["gpu_used_s"] / 3600, 8)
        self.assertAlmostEqual(hours["idle"]["total"], (half["gpu_measured_s"] - half["gpu_used_s"]) / 3600, 8)
        self.assertAlmostEqual(hours["unmeasured"], (half["gpu_s"] - half["gpu_measured_s"]) / 3600, 8)
        self.assertEqual((rows["blind"]["gpu_hours"]["used"], rows["blind"]["energy_j"], rows["none"]["energy_j"]), (None, None, None))
        self.assertAlmostEqual(report["total"]["energy_j"], half["gpu_energy_j"] + busy["gpu_energy_j"], 3)
        text = self.good("cost").out
        self.assertIn(" kWh", text)
        self.assertIn("GPUs held but idle", text)

    def test_tasks_that_share_a_gpu_divide_its_use(self):
        # Each waits for the file of the other, so that both run together for a second.
        self.machine(ONE + "load 60 1000 60 300000\n")
        self.pipeline(r'''
local meet = flow.shell("meet", { gpus = 0.5, args = { "own", "other" },
  command = [[touch {own}; while [ ! -e {other} ]; do sleep 0.02; done; sleep 1]] })
''', 'local a, b = "%s", "%s" return { meet(a, b).stdout, meet(b, a).stdout }' % (self.path("a"), self.path("b")))
        self.good("run", "p.lua", "--jobs", "2")
        both = [self.tasks()[name] for name in ("meet", "meet#2")]
        for task in both:  # 60% of its half; of the time in which it is alone, 60% of the whole
            self.assertTrue(0.6 - 1e-4 <= task["gpu_used_s"] / task["gpu_measured_s"] <= 1.2 + 1e-4, task)
        walls = [task["gpu_measured_s"] / 0.5 for task in both]
        used = sum(task["gpu_used_s"] for task in both)
        self.assertGreaterEqual(used, 0.6 * max(walls) - 1e-4)
        self.assertLessEqual(used, 0.6 * sum(walls) + 1e-4)

    def test_what_a_killed_attempt_used_is_recorded(self):
        self.machine(ONE + "load 50 1000 60 200000\n")
        self.pipeline('local die = flow.shell("die", { gpus = 1, retries = 0, command = "sleep 1; kill -9 $PPID; sleep 100" })\n', "return die().stdout")
        self.exits(1, self.flow("run", "p.lua"))
        die = self.tasks()["die"]
        self.assertAlmostEqual(die["gpu_used_s"] / die["gpu_measured_s"], 0.5, 4)

    def test_tasks_with_whole_gpus_share_one_gpu_in_turn(self):
        self.pipeline(r'''
local alone = flow.shell("alone", { gpus = 1, args = { "log", "n" },
  command = [[echo begin >> {log}; sleep 0.2; echo end >> {log}; echo {gpus} $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER]] })
''', 'local all = {} for i = 1, 3 do all[i] = alone("%s", i).stdout end return all' % self.path("log"))
        self.assertEqual(self.result("--jobs", "4"), ["1 GPU-aa11 PCI_BUS_ID\n"] * 3)
        self.assertEqual(self.read("log").split(), ["begin", "end"] * 3)

    def test_a_task_without_gpus_sees_none(self):
        self.pipeline(r'''
local bare = flow.shell("bare", { command = [[echo {gpus} "[$CUDA_VISIBLE_DEVICES]"]] })
local named = flow.shell("named", { env = { CUDA_VISIBLE_DEVICES = "7" }, command = [[echo "$CUDA_VISIBLE_DEVICES"]] })
local lua = flow.task("lua", function(ctx) return { ctx.device, os.getenv("CUDA_VISIBLE_DEVICES") } end)
local moves = flow.task("moves", function() return flow.ones(1):to("cuda") end)
''', "return { bare().stdout, named().stdout, lua(), moves() }")
        done = self.exits(1, self.flow("run", "p.lua", CUDA_VISIBLE_DEVICES="0"))
        self.assertIn("cuda:0 can't be used: ", done.err)
        self.assertIn("`moves` asks for no GPU, and so sees none: write `gpus = 1`", done.err)
        self.assertEqual(self.show()["result"], ["0 []\n", "7\n", ["cpu", ""], None])
        self.assertIsNone(self.gpus("bare"))

    def test_an_executor_sees_the_gpus_of_its_attempt_and_runs_no_others(self):
        self.machine(TWO)
        self.pipeline(r'''
local function look(ctx, before)
  local stat, vars = io.open("/proc/self/stat"), io.open("/proc/self/environ")
  local is_gone = true
  if before then is_gone = io.open("/proc/" .. before.pid .. "/stat") == nil end
  return { pid = stat:read("n"), is_gone = is_gone, device = ctx.device, asked = os.getenv("CUDA_VISIBLE_DEVICES"),
           sees = vars:read("a"):match("%zCUDA_VISIBLE_DEVICES=(%Z*)") }
end
local small = flow.task("small", { gpus = 1, gpu = "H100" }, look)
local share = flow.task("share", { gpus = 0.25, gpu = "H100", gpu_memory = "10G" }, look)
local both = flow.task("both", { gpus = 2, timeout = "1m" }, look)
local large = flow.task("large", { gpus = 1, gpu_memory = "100G" }, look)
local plain = flow.task("plain", look)
''', "local s = small() local t = share(s) local b = both(t) local l = large(b) return { s, t, b, l, plain(l) }")
        small, share, both, large, plain = self.result("--jobs", "1")
        self.assertEqual([each["sees"] for each in (small, share, both, large, plain)],
                         ["GPU-aa11", "GPU-aa11", "GPU-aa11,GPU-bb22", "GPU-bb22", ""])
        self.assertEqual([each["asked"] for each in (both, plain)], ["GPU-aa11,GPU-bb22", ""])
        self.assertEqual([each["device"] for each in (small, share, both, large, plain)], ["cuda:0"] * 4 + ["cpu"])
        self.assertEqual(small["pid"], share["pid"], "the same GPU: the warm executor")
        self.assertFalse(share["is_gone"])
        self.assertEqual(len({each["pid"] for each in (share, both, large, plain)}), 4)
        self.assertTrue(both["is_gone"] and large["is_gone"], "who holds memory of its GPUs has ended")
        self.assertFalse(plain["is_gone"])

    def test_cuda_visible_devices_limits_the_machine(self):
        self.machine(TWO)
        self.pipeline('local see = flow.shell("see", { gpus = 1, command = "printenv CUDA_VISIBLE_DEVICES" })\n',
                      "return see().stdout")
        self.assertEqual(self.result(CUDA_VISIBLE_DEVICES="1"), "GPU-bb22\n")
        done = self.exits(2, self.flow("run", "p.lua", CUDA_VISIBLE_DEVICES=""))
        self.assertIn("CUDA_VISIBLE_DEVICES= hides its 2 GPUs", done.err)
        self.machine(TWO + "lost\n")
        done = self.good("run", "p.lua", "--fresh")
        self.assertIn("GPU 1: the NVIDIA driver's library can't open it: GPU is lost", done.err)

    def test_doctor_lists_each_gpu_and_its_faults(self):
        self.machine(TWO + "gpu GPU-dd44 1 A\nlost\n")
        lines = {line["check"]: line for line in self.good("doctor", "--json").lines()}
        self.assertEqual(lines["GPU 1"]["gpu"], {"index": 1, "uuid": "GPU-bb22", "name": "NVIDIA H200", "pci": "0000:f1:00.0",
                                                 "memory_bytes": 143771 << 20, "numa": None, "mig": False, "nvlink": None, "fabric": None})
        self.assertEqual(lines["GPUs"]["verdict"], "warning")
        self.assertIn("GPU 2: the NVIDIA driver's library can't open it", lines["GPUs"]["text"])
        self.machine("crash\n")
        self.assertIn("ended by signal 6", self.good("doctor").out)

    def test_several_gpus_of_a_task_are_joined_by_nvlink(self):
        self.machine("".join("gpu GPU-%d 81559 NVIDIA H100\n" % i for i in range(5)) + "nvlink 1 4\nnvlink 2 3\nnvlink 3 0\n")
        self.pipeline('local pair = flow.shell("pair", { gpus = 2, command = "printenv CUDA_VISIBLE_DEVICES" })\n'
                      'local three = flow.shell("three", { gpus = 3, args = { "after" }, command = "printenv CUDA_VISIBLE_DEVICES" })\n'
                      'local ranks = flow.shell("ranks", { gpus = 1, ranks = 2, args = { "after" }, command = "printenv CUDA_VISIBLE_DEVICES" })\n',
                      "local p = pair().stdout local t = three(p).stdout return { p, t, ranks(t).stdout }")
        self.assertEqual(self.result("--jobs", "2"), ["GPU-1,GPU-4\n", "GPU-0,GPU-2,GPU-3\n", "GPU-1,GPU-4\n"])
        lines = {line["check"]: line for line in self.good("doctor", "--json").lines()}
        self.assertEqual([lines["GPU %d" % i]["gpu"]["nvlink"] for i in range(5)], [0, 1, 0, 0, 1])
        shown = self.good("worker", "--show").out
        self.assertIn("NVLink 1", shown)
        [node] = self.good("worker", "--show", "--json").lines()
        self.assertEqual([gpu["nvlink"] for gpu in node["gpus"]], [0, 1, 0, 0, 1])
        self.assertEqual([gpu["numa"] for gpu in node["gpus"]], [None] * 5)
        self.machine(ONE + "fabric x 5\n")
        self.assertIn("fabric " + "78" * 16 + "/5", self.good("doctor").out)

    def test_each_rank_of_a_process_gang_sees_only_its_mig_instance_as_device_0(self):
        # CUDA shows a process one instance.
        self.machine("gpu GPU-aa11 81559 NVIDIA H100\nmig MIG-cc33 18000 NVIDIA H100 MIG 1g.18gb\nmig MIG-dd44 18000 NVIDIA H100 MIG 1g.18gb\n")
        self.pipeline(r'''
local ranks = flow.shell("ranks", { gpus = 1, ranks = 2, args = { "path" }, command =
  [[echo {rank} of {ranks}: $CUDA_VISIBLE_DEVICES $LOCAL_RANK/$LOCAL_WORLD_SIZE $RANK/$WORLD_SIZE >> {path}]] })
''', 'ranks("%s")' % self.path("log"))
        self.good("run", "p.lua", "--jobs", "2")
        self.assertEqual(sorted(self.read("log").splitlines()), ["0 of 2: MIG-cc33 0/1 0/2", "1 of 2: MIG-dd44 0/1 1/2"])

    def test_several_mig_instances_are_rejected_with_the_reason(self):
        self.machine("gpu GPU-aa11 81559 NVIDIA H100\nmig MIG-cc33 18000 NVIDIA H100 MIG 1g.18gb\nmig MIG-dd44 18000 NVIDIA H100 MIG 1g.18gb\n")
        self.pipeline('local two = flow.shell("two", { gpus = 2, command = "true" })\n', "return two().stdout")
        said = "2 of them are instances of a GPU in MIG mode, and a process can use only one instance: ask for `gpus = 1`"
        self.assertIn(said, self.exits(2, self.flow("run", "p.lua")).err)
        done = self.exits(2, self.flow("run", "p.lua", "--workers", "2"))
        self.assertEqual((done.err.count("error:"), "GPUs" in done.err), (1, True), done)

    def test_the_numa_node_of_a_gpu_comes_from_the_kernel(self):
        self.machine(TWO + "gpu GPU-cc33 1 A\ngpu GPU-dd44 1 B\n")
        for pci, node in ("f0", 1), ("f1", 0), ("f2", -1):
            os.makedirs(self.path("sys", "bus", "pci", "devices", "0000:%s:00.0" % pci))
            self.write("sys/bus/pci/devices/0000:%s:00.0/numa_node" % pci, "%d\n" % node)
        [node] = self.good("worker", "--show", "--json", FLOW_SYSFS=self.path("sys")).lines()
        self.assertEqual([gpu["numa"] for gpu in node["gpus"]], [1, 0, None, None])
        shown = self.good("worker", "--show", FLOW_SYSFS=self.path("sys")).out
        self.assertEqual([line.split("NUMA node ")[1] for line in shown.splitlines() if "NUMA" in line], ["1", "0"])

    def test_nodes_shows_the_use_of_each_gpu_and_its_users(self):
        self.machine(TWO + "mig MIG-cc33 18000 NVIDIA H200 MIG 1g.18gb\nmig MIG-dd44 18000 NVIDIA H200 MIG 1g.18gb\n")
        self.assertIn("MIG-cc33  NVIDIA H200 MIG 1g.18gb  17.6 GiB  MIG instance of GPU 1\n", self.good("worker", "--show").out)
        self.pipeline(r'''
local waits = "echo {label} >> {path}.started; while [ ! -e {path} ]; do sleep 0.05; done"
local half = flow.shell("half", { gpus = 0.5, gpu = "H100", gpu_memory = "10G", args = { "path", "label" }, command = waits })
local slice = flow.shell("slice", { gpus = 1, gpu = "MIG", args = { "path", "label" }, command = waits })
''', 'local path = "%s" half(path, "half") slice(path, "slice")' % self.path("gate"))
        run = self.start("run", "p.lua", "--workers", "1", "--jobs", "4")
        for label in "half", "slice":
            self.until_holds(label)
        half, slice = (self.runs()[0]["run"] + " " + name for name in ("half", "slice"))
        node = {node["node"]: node for node in self.good("nodes", "--json").lines()}["local-1"]
        self.assertEqual([(gpu["uuid"], gpu["mig"], gpu["used"], gpu["memory_used"], gpu["tasks"]) for gpu in node["gpus"]],
                         [("GPU-aa11", False, 0.5, 10 << 30, [half]), ("MIG-cc33", True, 1, 0, [slice]), ("MIG-dd44", True, 0, 0, [])])
        lines = [line.strip() for line in self.good("nodes").out.splitlines()]
        self.assertIn("1.5/3 GPUs", lines[1])
        self.assertEqual([line.split() for line in lines if line.startswith(("GPU", "MIG"))],
                         [("GPU 0 NVIDIA H100 80GB HBM3 GPU-aa11 0.5/1, 10.0 GiB/79.6 GiB: " + half).split(),
                          ("MIG of GPU 1 NVIDIA H200 MIG 1g.18gb MIG-cc33 1/1: " + slice).split(),
                          "MIG of GPU 1 NVIDIA H200 MIG 1g.18gb MIG-dd44 free".split()])
        self.open("gate")
        self.exits(0, self.end(run))

    def test_doctor_lists_the_libraries_of_gpus(self):
        def libraries(**env):
            lines = {line["check"]: line for line in self.good("doctor", "--json", **env).lines()}
            return lines["CUDA"]["text"], {name: (line["verdict"], line["text"]) for name, line in lines.items()
                                           if name in ("cuBLASLt", "cuDNN", "NVRTC")}
        self.machine("")
        self.assertEqual(libraries()[1], {})
        self.machine(TWO)
        cuda, found = libraries(FLOW_CUDNN_LIB=os.environ["FLOW_TEST_CUDNN"])
        if cuda.startswith("left out"):
            self.assertEqual(found, {})
            return
        self.assertEqual(list(found), ["cuBLASLt", "cuDNN", "NVRTC"])
        self.assertEqual(found["cuDNN"], ("ok", "cuDNN 9.19.0, " + os.environ["FLOW_TEST_CUDNN"]))
        for name in ("cuBLASLt", "NVRTC"):
            verdict, text = found[name]
            self.assertRegex(text, "^" + name + r" \d+\.\d+(\.\d+)?, /" if verdict == "ok" else "cannot be used|not found")
        verdict, text = libraries(FLOW_CUDNN_LIB="/nowhere.so")[1]["cuDNN"]
        self.assertEqual(verdict, "warning")
        self.assertTrue(text.startswith("convolutions, and attention in f16 and bf16, fail: the library that FLOW_CUDNN_LIB names cannot be used: /nowhere.so"), text)
        self.assertEqual(libraries(FLOW_CUDNN_LIB="off")[1]["cuDNN"],
                         ("ok", "disabled by FLOW_CUDNN_LIB: flow's own kernels compute convolutions and attention"))
        found = libraries(FLOW_CUBLASLT_LIB="/nowhere.so", FLOW_NVRTC_LIB="/nowhere.so")[1]
        self.assertEqual({found[name][0] for name in ("cuBLASLt", "NVRTC")}, {"warning"})
        self.assertTrue(found["cuBLASLt"][1].startswith(
            "matrix products fail: the library that FLOW_CUBLASLT_LIB names cannot be used: /nowhere.so"), found)
        self.assertTrue(found["NVRTC"][1].startswith(
            "`flow.kernel` fails: the library that FLOW_NVRTC_LIB names cannot be used: /nowhere.so"), found)
        found = libraries(FLOW_CUBLASLT_LIB="off", FLOW_NVRTC_LIB="off")[1]
        self.assertEqual(found["cuBLASLt"], ("ok", "disabled by FLOW_CUBLASLT_LIB: flow's own kernels compute matrix products"))
        self.assertEqual(found["NVRTC"][1], "`flow.kernel` fails: NVRTC, which compiles it, is disabled by FLOW_NVRTC_LIB")

    def test_a_driver_that_is_too_old_is_named_and_its_gpus_are_not_offered(self):
        if self.good("doctor", "--json").lines() and "left out" in self.good("doctor").out:
            return  # flow's kernels need no driver
        self.machine(ONE + "driver 470.57 11040\n")
        why = "driver 470.57 (CUDA 11.4), flow needs "
        self.assertIn(why, self.good("doctor").out)
        self.assertNotIn("GPU-aa11", self.good("worker", "--show").out)
        self.assertIn(why, self.refused("gpus = 1"))

    def refused(self, options):
        self.pipeline('local fit = flow.task("fit", { %s }, print)\n' % options, "return fit()")
        before = len(self.runs())
        done = self.exits(2, self.flow("run", "p.lua"))
        self.assertEqual(len(self.runs()), before)
        return done.err

    def test_unsatisfiable_requests_are_reported_before_anything_runs(self):
        self.assertIn("p.lua:4: the task `fit` asks for gpus = 2, and this machine has 1: GPU 0 (NVIDIA H100 80GB HBM3, "
                      "79.6 GiB); ask for less", self.refused("gpus = 2"))
        self.assertIn('asks for gpus = 1 with gpu = "H200|A100", and 0 of this machine\'s 1 GPUs are suitable',
                      self.refused('gpus = 1, gpu = "H200|A100"'))
        self.assertIn("asks for gpus = 0.5 with gpu_memory = 90 GiB", self.refused('gpus = 0.5, gpu_memory = "90G"'))
        self.assertIn("has the option `gpu` and asks for no GPU", self.refused('gpu = "H100"'))
        self.assertIn('the option `gpu` must be a model pattern such as "H200|H100"', self.refused('gpus = 1, gpu = "H100|"'))
        self.machine("fail nvmlInit_v2 18\n")
        self.assertIn("this machine has none: the NVIDIA driver's library can't be started: Driver/library version "
                      "mismatch (status 18); remove `gpus` to run it on CPUs", self.refused("gpus = 1"))
        self.machine("crash\n")
        self.assertIn("ended by signal 6", self.refused("gpus = 1"))

    def test_a_run_without_gpus_does_not_wait_for_the_driver(self):
        self.machine("hang\n")
        self.pipeline('local add = flow.task("add", function(ctx, a) return a + 1 end)\n'
                      'local unused = flow.task("unused", { gpus = 8 }, print)\n', "return add(1)")
        began = time.monotonic()
        self.assertEqual(self.result(), 2)
        self.assertLess(time.monotonic() - began, 10)

    def test_a_call_of_a_dynamic_task_that_the_machine_cannot_run_fails(self):
        self.pipeline(r'''
local two = flow.task("two", { gpus = 2 }, print)
local one = flow.task("one", { gpus = 1 }, function(ctx) return ctx.device end)
local ask = flow.dynamic("ask", function(ctx, n) return n == 1 and one() or two() end)
''', "return { ask(1), ask(2) }")
        done = self.exits(1, self.flow("run", "p.lua"))
        self.assertIn("`ask#2/two` asks for gpus = 2, and this machine has 1", done.err)
        self.assertEqual(self.show()["result"], ["cuda:0", None])

    def hold_pipeline(self):
        self.pipeline(r'''
local holds = flow.shell("holds", { gpus = 1, gpu_memory = "1G", args = { "path" },
  command = [[echo $CUDA_VISIBLE_DEVICES >> {path}.started; while [ ! -e {path} ]; do sleep 0.05; done]] })
local waits = flow.shell("waits", { gpus = 0.5, priority = -1, command = "printenv CUDA_VISIBLE_DEVICES" })
''', 'holds("%s") return waits().stdout' % self.path("gate"))

    def test_why_names_the_gpus_and_their_users(self):
        self.hold_pipeline()
        run = self.start("run", "p.lua", "--jobs", "4")
        self.until_holds("GPU-aa11")
        self.assertIn("it asks for gpus = 0.5; 0 of 1 have that much free: GPU 0 has 0 free, held by `holds`",
                      self.good("why", "last", "waits").out)
        self.assertEqual(self.gpus("holds"), ["GPU-aa11"])
        self.open("gate")
        self.exits(0, self.end(run))

    def test_a_kill_frees_gpus_and_a_resume_uses_the_available_ones(self):
        self.hold_pipeline()
        run = self.start("run", "p.lua", "--jobs", "4")
        self.until_holds("GPU-aa11")
        self.kill(run)
        self.assertEqual(self.show()["status"], "interrupted")
        self.machine("")
        done = self.exits(2, self.flow("resume"))
        self.assertIn("asks for gpus = 1 with gpu_memory = 1 GiB, and this machine has none: the NVIDIA driver knows no "
                      "GPU", done.err)
        self.machine(TWO.replace("GPU-aa11", "GPU-cc33"))
        resumed = self.start("resume", "--jobs", "4")
        self.until_holds("GPU-cc33")
        self.open("gate")
        self.exits(0, self.end(resumed))
        tasks = self.tasks()
        self.assertEqual(tasks["holds"]["gpus"], ["GPU-cc33"])
        self.assertEqual(tasks["holds"]["attempts"], 2)
        self.assertEqual(self.show()["result"], "GPU-bb22\n")

    def test_a_second_flow_shares_the_writers_gpus(self):
        self.hold_pipeline()
        first = self.start("run", "p.lua", "--jobs", "4")
        self.until_holds("GPU-aa11")
        self.write("q.lua", HEAD + 'local q = flow.shell("q", { gpus = 0.1, command = "printenv CUDA_VISIBLE_DEVICES" })\n'
                   'return flow.pipeline("q", {}, function() return q().stdout end)\n')
        second = self.start("run", "q.lua")
        self.until("q waits", lambda: any(run["pipeline"] == "q" for run in self.runs()))
        self.assertIn("held by `holds` of run", self.good("why", "last", "q").out)
        self.open("gate")
        self.exits(0, self.end(second))
        self.exits(0, self.end(first))
        self.assertEqual(self.show()["result"], "GPU-aa11\n")


main()
