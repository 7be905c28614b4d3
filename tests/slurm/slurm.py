#!/usr/bin/env python3
"""Runs on nodes of a real Slurm: requests, rejections, lost nodes, and that nothing is left."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
import controller
import place

SKIPPED = 77
SLURM = None

# Each occupies a node with two CPUs until `gate`, or `gate` with its own name, exists.
HOLDS = r'''
local flow = require "flow"
local hold = flow.shell("hold", { args = { "path", "label" }, cpus = 2, command = [[
  echo {label} >> {path}.started
  while [ ! -e {path} ] && [ ! -e {path}.{label} ]; do sleep 0.05; done
  echo {label}]] })
return flow.pipeline("holds", { gate = flow.param.string {}, count = flow.param.int { default = 4 } }, function(p)
  local all = {}
  for i = 1, p.count do all[i] = hold(p.gate, "item" .. i).stdout end
  return all
end)
'''
# Continues from its last step, on whichever node that ran.
STEPS = r'''
local flow = require "flow"
local steps = flow.task("steps", { cpus = 2 }, function(ctx, count)
  local state = ctx:restore() or { step = 0 }
  while state.step < count do
    os.execute("sleep 0.5")
    state.step = state.step + 1
    ctx:checkpoint(state)
  end
  return state.step
end)
return flow.pipeline("steps", { count = flow.param.int {} }, function(p) return steps(p.count) end)
'''

# Two tasks at once, each with a GPU, until `gate` exists.
GPUS = r'''
local flow = require "flow"
local hold = flow.shell("hold", { args = { "path", "label" }, gpus = 1, command = [[
  echo {label} >> {path}.started; while [ ! -e {path} ]; do sleep 0.05; done; echo $CUDA_VISIBLE_DEVICES]] })
return flow.pipeline("gpus", { gate = flow.param.string {} }, function(p)
  return { hold(p.gate, "one").stdout, hold(p.gate, "two").stdout }
end)
'''

# Each rank prints its job and node, and a program also prints how many CPUs it has.
RANKS_SHELL = r'''
local flow = require "flow"
local where = flow.shell("where", { ranks = RANKS, cpus = CPUS, command = [[echo $SLURM_JOB_ID $SLURM_NODEID {cpus}]] })
return flow.pipeline("ranks", function() where() end)
'''
RANKS_LUA = r'''
local flow = require "flow"
local where = flow.task("where", { ranks = RANKS, cpus = CPUS }, function(ctx)
  ctx:log("%s %s", os.getenv("SLURM_JOB_ID"), os.getenv("SLURM_NODEID"))
  return ctx.comm:all_reduce(1)
end)
return flow.pipeline("ranks", function() return where() end)
'''

NEEDS = r'''
local flow = require "flow"
local on = flow.task("on", { NEEDS }, function() return 1 end)
return flow.pipeline("needs", function() return on() end)
'''


def setUpModule():
    global SLURM
    SLURM = controller.Controller(tempfile.mkdtemp(prefix="flow-slurm-"))
    try:
        SLURM.start()
    except BaseException:
        tearDownModule()
        raise


def tearDownModule():
    try:
        SLURM.stop()
    finally:
        shutil.rmtree(SLURM.folder, ignore_errors=True)


class Slurm(place.Place):
    def setUp(self):
        super().setUp()
        self.until("the nodes are free", lambda: not SLURM.jobs() and SLURM.answer(
            "sinfo", "--noheader", "--format=%T", "--partition=low").split() == ["idle"])
        self.before = SLURM.jobs("all")
        self.env = dict(self.env, FLOW_WORKER_DIR=self.path("workers"), SLURM_CONF=SLURM.conf,
                        PATH=SLURM.env["PATH"])
        os.mkdir(self.path("workers"))
        self.write("holds.lua", HOLDS)
        self.write("steps.lua", STEPS)

    def tearDown(self):
        for process in self.processes:
            if process.poll() is None:
                self.kill(process)
        for job in SLURM.jobs():
            SLURM.answer("scancel", str(job))

    def on_slurm(self, *words):
        return [*words, "--on", "slurm", "--listen", "127.0.0.1:0", "--json"]

    def start_holds(self, count, *words):
        return self.start(*self.on_slurm("run", "holds.lua", "--param", "gate=" + self.path("gate"), "--param",
                                         "count=%d" % count, *words))

    def until_started(self, count):
        self.until("%d run" % count, lambda: os.path.exists(self.path("gate.started")) and
                   len(self.read("gate.started").split()) >= count)

    def until_reported(self, process, text):
        reported = []
        pipes = (process.stdout.fileno(), process.stderr.fileno())
        for pipe in pipes:
            os.set_blocking(pipe, False)

        def is_reported():
            for pipe in pipes:
                try:
                    reported.append(os.read(pipe, 1 << 16))
                except BlockingIOError:
                    pass
            return text.encode() in b"".join(reported)
        self.until("it says: " + text, is_reported)

    def new_jobs(self):
        return [job for job in SLURM.jobs("all") if job not in self.before]

    def until_no_job(self):
        self.until("no job is left", lambda: not SLURM.jobs())

    def workers_up(self):
        done = self.flow("nodes", "--json")
        return sum(bool(node["node"]) and node["status"] == "up" for node in done.lines()) if done.code == 0 else 0

    def run_of(self, done):
        return json.loads(done.out.splitlines()[-1])

    def workers_of(self, run):
        return sorted(task["worker"] for task in run["tasks"])

    def test_a_run_on_four_nodes_releases_them(self):
        client = self.start_holds(4, "--nodes", "4", "--time", "10m")
        self.until_started(4)
        nodes = [json.loads(line) for line in self.good("nodes", "--json").out.splitlines()]
        self.assertEqual(sorted(node["node"] for node in nodes if node["node"]), controller.NODES)
        self.assertEqual({node["labels"]["slurm_job"] for node in nodes if node["node"]},
                         {str(job) for job in self.new_jobs()})
        self.open("gate")
        run = self.run_of(self.exits(0, self.end(client)))
        self.assertEqual(self.workers_of(run), controller.NODES)
        self.assertEqual(len(self.new_jobs()), 1)
        self.until_no_job()
        self.until("the workers' folders are gone", lambda: not os.listdir(self.path("workers")))
        done = self.end(self.start_holds(4, "--nodes", "4", "--fresh"))
        self.assertEqual([task["attempts"] for task in self.run_of(self.exits(0, done))["tasks"]], [1] * 4)
        self.assertNotIn("to come back", done.out)
        self.assertNotIn("no worker has joined", done.out)

    def write_ranks(self, ranks, cpus, script=RANKS_SHELL):
        self.write("ranks.lua", script.replace("RANKS", str(ranks)).replace("CPUS", str(cpus)))

    def told_by_ranks(self):
        lines = self.good("logs", "last", "where", "--json").lines()
        self.assertEqual(sorted(line["rank"] for line in lines), list(range(len(lines))))
        return sorted(line["text"] for line in lines)

    def hold_nodes(self, count):
        """Submits another job for this many nodes, until it is cancelled. Returns its number."""
        answer = SLURM.answer("sbatch", "--parsable", "--nodes=%d" % count, "--exclusive", "--output=/dev/null", "--wrap", "exec sleep 1000")
        self.until("the nodes are held", lambda: int(answer) in SLURM.jobs("running"))
        return int(answer)

    def test_a_gang_uses_all_requested_nodes(self):
        for script, cpus in (RANKS_SHELL, " 1"), (RANKS_LUA, ""):
            self.write_ranks(6, 1, script)
            before = self.new_jobs()
            done = self.exits(0, self.end(self.start(*self.on_slurm("run", "ranks.lua", "--nodes", "3"))))
            [job] = [job for job in self.new_jobs() if job not in before]
            self.assertEqual(self.told_by_ranks(), ["%d %d%s" % (job, i // 2, cpus) for i in range(6)], done)
            self.assertEqual(len(set(self.run_of(done)["tasks"][0]["worker"].split(", "))), 3)
            self.assertNotIn("fewer CPUs", done.out + done.err)

    def test_a_gang_waits_for_the_last_requested_node(self):
        other = self.hold_nodes(2)
        self.write_ranks(3, 2)
        client = self.start(*self.on_slurm("run", "ranks.lua", "--elastic", "0:3"))
        self.until("two nodes have come", lambda: self.workers_up() == 2 and len(self.new_jobs()) == 4)
        self.assertIn("1 of the 3 expected workers has not joined", self.good("why", "last", "where").out)
        self.assertEqual(self.tasks()["where"]["attempts"], 0)
        SLURM.answer("scancel", str(other))
        done = self.exits(0, self.end(client))
        jobs = [job for job in self.new_jobs() if job != other]
        self.assertEqual(self.told_by_ranks(), sorted("%d 0 2" % job for job in jobs), done)
        self.assertNotIn("fewer CPUs", done.out + done.err)

    def test_a_gang_runs_on_its_current_nodes_when_slurm_rejects_more(self):
        other = self.hold_nodes(4)
        self.write_ranks(3, 2)
        client = self.start(*self.on_slurm("run", "ranks.lua", "--elastic", "0:3"))
        self.until("a node is asked for", lambda: len(self.new_jobs()) == 2)
        self.addCleanup(SLURM.answer, "scontrol", "update", "partitionname=low", "state=up")
        SLURM.answer("scontrol", "update", "partitionname=low", "state=drain")
        SLURM.answer("scancel", str(other))
        done = self.exits(0, self.end(client), "fewer CPUs")
        self.assertEqual(self.told_by_ranks(), ["%d 0 1" % self.new_jobs()[-1]] * 3, done)

    def test_a_rejection_by_slurm_is_reported_in_its_words_and_the_run_is_kept(self):
        done = self.end(self.start_holds(1, "--nodes", "2", "--partition", "nowhere"))
        self.exits(4, done, "sbatch --parsable", "--partition=nowhere", "Invalid partition name specified",
                   "flow resume")
        self.assertEqual(self.show()["status"], "interrupted")
        done = self.end(self.start(*self.on_slurm("resume", "--nodes", "1", "--slurm-arg=--begin=nonsense")))
        self.exits(4, done, "Invalid --begin specification")
        self.open("gate")
        self.exits(0, self.end(self.start(*self.on_slurm("resume", "--nodes", "1"))))

    def test_a_request_that_would_never_start_is_not_awaited(self):
        # Slurm reports PartitionConfig for both until its scheduler has checked more closely.
        for asks in (("--nodes", "1", "--time", "9999"), ("--nodes", "40")):
            done = self.end(self.start_holds(1, *asks, "--fresh"))
            self.exits(4, done, "flow resume")
            reported = r"cannot start: PENDING \(Partition(Config|TimeLimit|NodeLimit)\)"
            self.assertRegex(done.err, reported)
            self.assertRegex(self.good("why", "last").out, reported)
            self.until_no_job()

    def test_unsatisfiable_requests_are_reported_before_nodes_are_allocated(self):
        run = self.on_slurm("run", "needs.lua", "--nodes", "1")
        for needs, flags, words in (("resources = { fpga = 1 }", (), ("fpga = 1", "no such resource", "--resource NAME=N")),
                                    ("resources = { fpga = 3 }", ("--resource", "fpga=2"), ("fpga = 3", "has fpga = 2")),
                                    ("gpus = 2", ("--gpus-per-node", "1"), ("gpus = 2", "--gpus-per-node 1"))):
            self.write("needs.lua", NEEDS.replace("NEEDS", needs))
            self.exits(2, self.flow(*run, *flags), *words)
        self.assertEqual(SLURM.jobs(), [])
        for needs, reported in (("gpus = 1", "none were requested from Slurm"), ('where = "disk == ssd"', "no label but slurm_job"),
                            ('memory = "900GiB"', "fit on none of Slurm's nodes")):
            self.write("needs.lua", NEEDS.replace("NEEDS", needs))
            client = self.start(*run, "--fresh")
            self.until_reported(client, reported)
            client.send_signal(signal.SIGINT)
            self.exits(3, self.end(client))
            self.until_no_job()

    def test_gpus_are_those_that_slurm_assigns(self):
        self.write("machine", "".join("gpu GPU-%s 81559 NVIDIA H100\n" % name for name in ("aa11", "bb22", "cc33")))
        self.env.update(FLOW_NVML_LIB=os.environ["FLOW_TEST_NVML"], FLOW_FAKE_NVML=self.path("machine"))
        self.write("gpus.lua", GPUS)
        run = self.on_slurm("run", "gpus.lua", "--param", "gate=" + self.path("gate"), "--nodes", "1")
        self.exits(4, self.flow(*run, "--gpus-per-node", "3"), "sbatch", "--gpus-per-node=3", "Requested node configuration is not available")
        client = self.start(*run, "--gpus-per-node", "2", "--fresh")
        self.until_started(2)
        [node] = [node for node in self.good("nodes", "--json").lines() if node["node"]]
        self.assertEqual([(gpu["uuid"], gpu["used"], len(gpu["tasks"])) for gpu in node["gpus"]],
                         [("GPU-aa11", 1, 1), ("GPU-bb22", 1, 1)])
        self.open("gate")
        run = self.run_of(self.exits(0, self.end(client)))
        self.assertEqual(sorted(run["result"]), ["GPU-aa11\n", "GPU-bb22\n"])

    def test_the_end_of_a_time_limit_loses_no_work(self):
        done = self.end(self.start(*self.on_slurm("run", "steps.lua", "--param", "count=100", "--nodes", "1", "--time",
                                                  "1m")))
        run = self.run_of(self.exits(0, done))
        self.assertEqual(run["result"], 100)
        self.assertGreaterEqual(len(self.new_jobs()), 2)
        self.assertEqual(run["tasks"][0]["attempts"], len(self.new_jobs()), done)
        self.assertNotIn("a new attempt", done.out)

    def test_a_cancelled_job_is_requested_again(self):
        client = self.start_holds(1, "--nodes", "1")
        self.until_started(1)
        first = self.new_jobs()
        SLURM.answer("scancel", str(first[0]))
        self.until_started(2)
        self.open("gate")
        done = self.exits(0, self.end(client), "CANCELLED", "Slurm is asked again")
        self.assertEqual(self.run_of(done)["tasks"][0]["attempts"], 2)
        self.assertEqual(len(self.new_jobs()), 2)

    def test_nodes_that_are_preempted_are_requested_again(self):
        client = self.start_holds(1, "--nodes", "4")
        self.until_started(1)
        better = subprocess.Popen(["srun", "--partition=high", "--nodes=4", "--exclusive", "sleep", "1"],
                                  env=SLURM.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.assertEqual(better.wait(60), 0)
        self.until_started(2)
        self.open("gate")
        self.exits(0, self.end(client))

    def test_the_next_flow_finds_the_job_of_a_killed_one(self):
        client = self.start_holds(2, "--nodes", "2")
        self.until_started(2)
        self.kill(client)
        again = self.start(*self.on_slurm("resume"), "--nodes", "2")
        self.until("it goes on", lambda: self.show()["status"] == "running")
        self.open("gate")
        run = self.run_of(self.exits(0, self.end(again)))
        self.assertEqual([task["attempts"] for task in run["tasks"]], [1, 1])
        self.assertEqual(len(self.new_jobs()), 1)
        self.until_no_job()

    def test_the_job_of_a_killed_flow_ends_by_itself(self):
        client = self.start_holds(1, "--nodes", "1")
        self.until_started(1)
        self.kill(client)
        self.until_no_job()
        self.open("gate")
        run = self.run_of(self.exits(0, self.end(self.start(*self.on_slurm("resume", "--nodes", "1")))))
        self.assertEqual(run["status"], "succeeded")

    def test_an_interrupted_run_releases_its_nodes(self):
        client = self.start(*self.on_slurm("run", "steps.lua", "--param", "count=500", "--nodes", "1"))
        self.until("it has begun", lambda: "steps" in self.flow("logs", "last").out or
                   self.flow("show", "last").code == 0 and self.tasks().get("steps", {}).get("status") == "running")
        client.send_signal(signal.SIGINT)
        self.exits(3, self.end(client))
        self.until_no_job()

    def test_an_elastic_pool_has_as_many_nodes_as_its_work_needs(self):
        client = self.start_holds(5, "--elastic", "0:3", "--idle", "2s")
        self.until_started(3)
        self.until("three nodes", lambda: len(SLURM.jobs("running")) == 3)
        time.sleep(2)
        self.assertEqual(len(self.new_jobs()), 3)
        self.open("gate.item1", "gate.item2", "gate.item3", "gate.item4")
        self.until("one node is left", lambda: len(SLURM.jobs("running")) == 1)
        self.open("gate")
        run = self.run_of(self.exits(0, self.end(client)))
        self.assertEqual([task["attempts"] for task in run["tasks"]], [1] * 5)
        self.assertEqual(len(self.new_jobs()), 3)
        self.until_no_job()

    def test_within_an_allocation_its_nodes_are_used(self):
        self.open("gate")
        words = ["salloc", "--nodes=2", "--exclusive", "--mem=0", place.OPTIONS.flow]
        words += self.on_slurm("run", "holds.lua", "--param", "gate=" + self.path("gate"))
        done = subprocess.run(words, env=self.env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        run = json.loads(done.stdout.splitlines()[-1])
        self.assertLessEqual(set(self.workers_of(run)), {"n1", "n2"})
        self.assertEqual(len(self.new_jobs()), 1)
        self.exits(2, self.flow(*self.on_slurm("run", "holds.lua", "--param", "gate=x")), "--nodes")


if __name__ == "__main__":
    if controller.why_not():
        print("skipped: " + controller.why_not())
        sys.exit(SKIPPED)
    place.main()
