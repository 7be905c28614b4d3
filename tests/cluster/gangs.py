#!/usr/bin/env python3
"""Tasks with several ranks, on one machine and on workers: the failure of one rank fails all of
them, and is named."""
import filecmp
import json
import os
import re
import signal
import time

import cluster_place
from cluster_place import IS_THERE, place, size_of, train_script

# Each rank adds its number, prints the sum, and writes down its process id.
SUM = r'''
local flow = require "flow"
local sum = flow.task("sum", { ranks = 3 }, function(ctx, n)
  ctx:log("rank %d of %d", ctx.rank, ctx.ranks)
  local x = ctx.comm:all_reduce(flow.zeros(n) + ctx.rank, "sum")
  local seeds = ctx.comm:all_gather(ctx.seed)
  local differ = seeds[1] ~= seeds[2] and seeds[2] ~= seeds[3] and seeds[1] ~= seeds[3]
  return { total = x:sum(), rank = ctx.rank, ranks = ctx.ranks, differ = differ, same = ctx.comm:broadcast(ctx.seed) == seeds[1] }
end)
return flow.pipeline("sums", function() return sum(1000) end)
'''
TORCHRUN = r'''
local flow = require "flow"
local show = flow.shell("show", { ranks = 3,
  command = [[echo $RANK {rank} $WORLD_SIZE {ranks} $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT; echo x > {outputs.own}]],
  outputs = { own = "own.txt" } })
return flow.pipeline("shows", function() return show() end)
'''
# The open files of programs that a rank starts.
OPEN = r'''
local flow = require "flow"
local open = flow.task("open", { ranks = 2 }, function(ctx)
  ctx.comm:all_reduce(1)
  local pipe = io.popen("for fd in /proc/$$/fd/*; do echo ${fd##*/} $(readlink $fd); done")
  local text = pipe:read("a")
  pipe:close()
  return ctx.comm:all_gather(text)
end)
return flow.pipeline("opens", function() return open() end)
'''
WAITS = r'''
local flow = require "flow"
local g = flow.task("g", { ranks = 2 }, function(ctx, rank)
  local answer = 0
  if rank == 2 or ctx.rank == rank then answer = ctx:wait("approved") end
  return rank == 2 and ctx.comm:all_reduce(answer) or answer
end)
return flow.pipeline("waits", { rank = flow.param.int {} }, function(p) return g(p.rank) end)
'''
RESTORES = r'''
local flow = require "flow"
local train = flow.task("train", { ranks = 2, retries = 1 }, function(ctx)
  local before = ctx:restore()
  ctx:checkpoint { step = ctx.attempt, x = flow.zeros(1000) }
  ctx.comm:barrier()
  local after = ctx:restore()
  if ctx.attempt == 1 then
    if ctx:restore() == nil then ctx:log("none") end
    ctx.comm:barrier()
    if ctx.rank == 1 then os.execute("kill -9 " .. tostring(io.open("/proc/self/stat"):read("n"))) end
    ctx.comm:barrier()
  end
  return ctx.comm:all_gather { before = before and before.step, after = after and after.step }
end)
return flow.pipeline("restores", function() return train() end)
'''
# Rank `rank` does `what` once the file `gate` exists.
BREAK = "local flow = require \"flow\"" + IS_THERE + r'''
local work = flow.task("work", { ranks = 3, retries = 0, env = { FLOW_COLLECTIVE_TIMEOUT = "LIMIT" } }, function(ctx, what, rank, gate)
  local file = io.open(gate .. ".pid" .. ctx.rank .. "." .. ctx.attempt, "w")
  file:write(io.open("/proc/self/stat"):read("n"))
  file:close()
  local x = ctx.comm:all_reduce(flow.zeros(10) + 1)
  while not is_there(gate) do os.execute("sleep 0.02") end
  if ctx.rank == rank and ctx.attempt == 1 then
    if what == "error" then error("out of cheese") end
    if what == "hang" then while true do os.execute("sleep 0.05") end end
    if what == "differ" then ctx.comm:barrier() end
    if what == "kill" then os.execute("kill -9 " .. tostring(io.open("/proc/self/stat"):read("n"))) end
    if what == "leave" then return 0 end
  end
  return ctx.comm:all_reduce(x):sum()
end)
return flow.pipeline("breaks", { what = flow.param.string {}, rank = flow.param.int { default = 1 }, gate = flow.param.string {} },
  function(p) return work(p.what, p.rank, p.gate) end)
'''

# Rank 0 stops its process during a save. Once the file `gate` exists, rank 1 fails; the next
# attempt restores what rank 0 saved.
KEEPS = "local flow = require \"flow\"" + IS_THERE + r"""
local function own() return tostring(io.open("/proc/self/stat"):read("n")) end
local train = flow.task("train", { ranks = 2, retries = 1 }, function(ctx, how, gate)
  local state = ctx:restore()
  if ctx.attempt > 1 then return state and state.step or 0 end
  local file = io.open(gate .. ".pid" .. ctx.rank, "w")
  file:write(own())
  file:close()
  if ctx.rank == 0 then
    ctx:checkpoint { step = 7, w = flow.zeros(6000, 6000) }
    os.execute("kill -STOP " .. own())
    while how == "goes on" do os.execute("sleep 0.02") end
    ctx.comm:barrier()
  end
  while not is_there(gate) do os.execute("sleep 0.02") end
  ctx:log("it fails")
  if how == "killed" then os.execute("kill -9 " .. own()) end
  error("out of cheese")
end)
return flow.pipeline("keeps", { how = flow.param.string {}, gate = flow.param.string {} }, function(p) return train(p.how, p.gate) end)
"""


class Gangs(cluster_place.ClusterPlace):
    def breaks(self, what, *words):
        # Ranks that are not late on purpose get a long limit, for a loaded machine.
        self.write("breaks.lua", BREAK.replace("LIMIT", "2s" if what == "hang" else "10m"))
        return self.start("run", "breaks.lua", "--json", "--jobs", "3", "--param", "what=" + what, "--param", "gate=" + self.path("gate"), *words)

    def cause(self, done):
        self.exits(1, done)
        why = json.loads(self.good("why", "last", "work", "--json").out)["why"]
        return why.split("cause: ", 1)[1].split("\n", 1)

    def test_ranks_of_one_machine(self):
        self.write("sums.lua", SUM)
        done = self.good("run", "sums.lua", "--json", "--jobs", "3")
        self.assertEqual(self.last_json(done)["result"], {"total": 3000, "rank": 0, "ranks": 3, "differ": True, "same": True})
        logs = [(line["rank"], line["text"]) for line in self.good("logs", "--json").lines()]
        self.assertEqual(sorted(logs), [(rank, "rank %d of 3" % rank) for rank in range(3)])
        self.assertIn("sum rank 2 | rank 2 of 3", self.good("logs").out)
        self.assertIn("rank 0 | rank 0 of 3\n", self.good("logs", "last", "sum").out)
        self.assertEqual(self.good("logs", "last", "sum", "--rank", "1").out, "rank 1 | rank 1 of 3\n")

    def test_all_ranks_restore_the_checkpoint_of_the_attempt(self):
        self.write("restores.lua", RESTORES)
        done = self.good("run", "restores.lua", "--json", "--jobs", "2")
        self.assertEqual(self.last_json(done)["result"], [{"before": 1, "after": 1}] * 2)
        self.assertEqual([line["text"] for line in self.good("logs", "--json").lines()], ["none"] * 2)

    def test_more_ranks_than_slots_share_the_slots(self):
        self.write("sums.lua", SUM)
        done = self.good("run", "sums.lua", "--json", "--jobs", "2")
        self.assertEqual(self.last_json(done)["result"]["total"], 3000)

    def test_programs_have_the_variables_of_torchrun(self):
        self.write("shows.lua", TORCHRUN)
        done = self.good("run", "shows.lua", "--json", "--jobs", "3")
        self.assertTrue(self.last_json(done)["result"]["stdout"].startswith("0 0 3 3 0 3 127.0.0.1 "))
        lines = sorted(line["text"] for line in self.good("logs", "--json").lines())
        self.assertEqual([line.rsplit(" ", 1)[0] for line in lines], ["%d %d 3 3 %d 3 127.0.0.1" % (r, r, r) for r in range(3)])
        self.assertEqual(len({line.rsplit(" ", 1)[1] for line in lines}), 1)

    def test_programs_inherit_no_open_files_of_the_ranks(self):
        self.write("opens.lua", OPEN)
        self.cluster(["a", "b"], slots=1)
        for text in self.last_json(self.good("run", "opens.lua", "--json"))["result"]:
            self.assertIn("pipe:", text)
            self.assertEqual([line for line in text.splitlines() if "socket:" in line or "anon_inode:" in line], [])

    def test_a_program_in_a_gang_of_one_rank_sees_one_rank(self):
        self.write("shows.lua", TORCHRUN.replace("ranks = 3", "ranks = { min = 1, max = 3 }"))
        done = self.good("run", "shows.lua", "--json", "--jobs", "1")
        self.assertTrue(self.last_json(done)["result"]["stdout"].startswith("0 0 1 1 0 1 127.0.0.1 "), done)

    def test_ranks_wait_for_a_signal_together_or_not_at_all(self):
        self.write("waits.lua", WAITS)
        for rank in "0", "1":
            done = self.exits(1, self.flow("run", "waits.lua", "--jobs", "2", "--param", "rank=" + rank))
            self.assertIn("rank %s called wait, rank %d called leave" % (rank, 1 - int(rank)) if rank == "0" else "rank 1 called wait", done.err)
        client = self.start("run", "waits.lua", "--jobs", "2", "--json", "--param", "rank=2")
        self.until_waits("g")
        self.good("signal", "last", "approved", "7")
        self.assertEqual(self.last_json(self.exits(0, self.end(client)))["result"], 14)

    def test_the_rank_that_fails_is_the_cause(self):
        self.open("gate")
        for what, cause, words in [("error", "user_error", ["rank 1 of 3: ", "out of cheese"]),
                                   ("kill", "signal", ["rank 1 of 3: ", "signal 9", "rank 1: its process", "it was last in all_reduce #1"]),
                                   ("hang", "timeout", ["rank 1 hangs: it has not reached all_reduce #2, in which", "it was last in all_reduce #1"]),
                                   ("differ", "user_error", ["rank 1 called barrier", "all_reduce(sum) of 10 f32"]),
                                   ("leave", "user_error", ["rank 1 called leave", "calls leave"])]:
            reported, message = self.cause(self.end(self.breaks(what, "--fresh")))
            self.assertEqual(reported, cause, message)
            for word in words:
                self.assertIn(word, message, what)
            if what == "hang":
                self.assertTrue(message.startswith(words[0]), message)

    def test_a_rank_that_hangs_until_the_timeout_is_named_with_its_last_collective(self):
        self.open("gate")
        cause = "rank 1 hangs: it has not reached all_reduce #2, in which ranks 0 and 2 wait; its last was all_reduce #1. hangs.lua:8: `work` ran longer"
        script = BREAK.replace("LIMIT", "10m").replace("retries = 0,", 'retries = 0, timeout = "8s",')
        words = "run", "hangs.lua", "--json", "--fresh", "--grace", "1s", "--param", "what=hang", "--param", "gate=" + self.path("gate")
        self.write("hangs.lua", script)
        self.assertIn(cause, self.cause(self.flow(*words, "--jobs", "3"))[1])
        self.cluster(["a", "b"])  # two ranks on one worker, one on the other
        reported, message = self.cause(self.flow(*words))
        self.assertEqual(reported, "timeout", message)
        self.assertTrue(message.startswith(cause), message)

    def test_a_program_that_hangs_until_the_timeout_is_named(self):
        self.write("programs.lua", r'''
local flow = require "flow"
local work = flow.shell("work", { ranks = 3, timeout = "5s", command = [[if [ {rank} = 1 ]; then sleep 1000; fi; true]] })
return flow.pipeline("programs", function() return work() end)
''')
        reported, message = self.cause(self.flow("run", "programs.lua", "--json", "--jobs", "3", "--grace", "1s"))
        self.assertEqual(reported, "timeout", message)
        cause = "rank 1 hangs: it has not reached its end, for which ranks 0 and 2 wait; it has called no collective. programs.lua:3: `work` ran longer"
        self.assertTrue(message.startswith(cause), message)

    def test_a_message_to_a_rank_that_has_ended_fails_at_once(self):
        self.write("ended.lua", r'''
local flow = require "flow"
local work = flow.task("work", { ranks = 2 }, function(ctx, what)
  if ctx.rank == 1 then return 1 end
  if what == "recv" then return ctx.comm:recv(nil, 1) end
  ctx.comm:send(flow.zeros(1000, 1000), 1)
end)
return flow.pipeline("ended", { what = flow.param.string {} }, function(p) return work(p.what) end)
''')
        self.cluster(["a", "b"], slots=1)
        for where in (), ("--state", "alone", "--jobs", "2"):
            for what, call in ("recv", "recv from"), ("send", "send to"):
                done = self.exits(1, self.flow("run", "ended.lua", "--param", "what=" + what, *where))
                self.assertIn("rank 1 has ended, and rank 0 waits in %s rank 1" % call, done.err)

    def test_rank_0_may_fail_like_any_other(self):
        self.open("gate")
        reported, message = self.cause(self.end(self.breaks("kill", "--param", "rank=0")))
        self.assertEqual(reported, "signal", message)
        self.assertIn("rank 0 of 3: ", message)

    def test_a_lost_worker_ends_the_gang_which_resumes_from_its_checkpoint(self):
        alone = self.trains_alone(3)
        self.cluster(["a", "b", "c"], slots=1)
        client = self.train_until(3)
        self.kill(self.workers["b"])
        self.until_status("b", "lost")
        self.worker("d", slots=1)
        self.open_steps(4, 6)
        done = self.exits(0, self.end(client))
        task = self.last_json(done)["tasks"][0]
        self.assertEqual((task["attempts"], self.last_json(done)["result"]), (2, alone), done)

    def test_a_checkpoint_of_rank_0_survives_the_loss_of_its_machine(self):
        self.write("train.lua", train_script(2).replace("50, 50", "600, 600"))
        alone = self.result("run", "train.lua", "--state", "alone", "--jobs", "2")
        self.cluster(["a", "b", "c"], slots=1)
        client = self.train_until(3)
        def moved(way):
            return {name: node["content"][way]["pieces"] for name, node in self.nodes().items() if name}
        def contents(folder):
            paths = [os.path.join(at, name) for at, _, names in os.walk(self.path(folder)) for name in names]
            return [path for path in paths if size_of(path) > 600 * 600 * 4]
        def is_sibling():
            newest = contents(".flow/checkpoints")
            try:
                same = [filecmp.cmp(newest[0], path, shallow=False) for path in contents("worker-b/objects")]
            except FileNotFoundError:  # an older one has just been removed
                return False
            return same == [True] and not contents("worker-a/objects")
        self.until("b has what a saved, and nothing older", is_sibling)
        before = moved("from_head")
        self.kill(self.workers["a"])
        self.until_status("a", "lost")
        self.open_steps(4, 4)
        self.until("b and c go on", lambda: "step 4 is kept" in self.flow("logs", "last", "train").out)
        after = moved("from_head")
        self.assertEqual((after["b"], after["c"]), (before["b"], 0))
        self.assertGreaterEqual(moved("from_workers")["c"], 1)
        self.open_steps(5, 6)
        done = self.exits(0, self.end(client))
        task = self.last_json(done)["tasks"][0]
        self.assertEqual((task["attempts"], self.last_json(done)["result"]), (2, alone), done)
        for name in "bc":
            self.until("nothing is left", lambda: not contents("worker-%s/checkpoints" % name))

    def test_a_failed_gang_leaves_no_files_on_its_workers(self):
        self.write("fails.lua", r'''
local flow = require "flow"
local train = flow.task("train", { ranks = 2, retries = 1 }, function(ctx)
  for step = 1, 3 do
    ctx:checkpoint { step = step, w = flow.zeros(600, 600) + ctx.comm:all_reduce(step) + ctx.attempt }
    ctx:step("saved" .. step, function() return step end)
  end
  ctx.comm:barrier()
  if ctx.rank == 1 then error("out of cheese") end
  ctx.comm:barrier()
end)
return flow.pipeline("fails", {}, function() return train() end)
''')
        self.cluster(["a", "b"], slots=1)
        self.exits(1, self.flow("run", "fails.lua"), "out of cheese")
        def is_clean():
            paths = [os.path.join(at, each) for name in "ab" for at, _, names in os.walk(self.path("worker-" + name)) for each in names]
            return not any("/checkpoints/" in path or size_of(path) > 600 * 600 * 4 for path in paths)
        self.until("nothing is left of it", is_clean)

    def keeps(self, how, *words):
        """Returns a client, and the process of rank 0, which stops during a save."""
        self.write("keeps.lua", KEEPS)
        gate = self.path(how)
        client = self.start("run", "keeps.lua", "--json", "--param", "how=" + how, "--param", "gate=" + gate, *words)
        for rank in "01":
            self.until("rank %s is there" % rank, lambda: size_of(gate + ".pid" + rank) > 0)
        rank = int(self.read(how + ".pid0"))
        self.until("it is stopped", lambda: self.is_stopped(rank))
        return client, rank

    def is_stopped(self, process):
        with open("/proc/%d/stat" % process) as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "T"

    def until_rank_1_fails(self, how):
        process = "/proc/" + self.read(how + ".pid1")
        self.open(how)
        if how == "killed":
            self.until("rank 1 is gone", lambda: not os.path.exists(process))
        else:
            self.until("rank 1 fails", lambda: "it fails" in self.flow("logs", "last", "train").out)

    def test_a_save_of_rank_0_is_completed_when_another_rank_fails(self):
        for how in "goes on", "waits", "killed":
            client, rank = self.keeps(how, "--fresh", "--jobs", "2", "--grace", "10m")
            self.until_rank_1_fails(how)
            os.kill(rank, signal.SIGCONT)
            done = self.exits(0, self.end(client))
            self.assertEqual((self.last_json(done)["tasks"][0]["attempts"], self.last_json(done)["result"]), (2, 7), how)

    def test_a_save_of_rank_0_is_completed_when_a_worker_is_lost(self):
        self.cluster(["a", "b"], slots=1)
        client, rank = self.keeps("waits", "--grace", "10m")
        self.kill(self.workers["b"])
        self.until("b is gone", lambda: self.nodes()["b"]["status"] != "up")
        os.kill(rank, signal.SIGCONT)
        self.worker("c", slots=1)
        done = self.exits(0, self.end(client))
        self.assertEqual((self.last_json(done)["tasks"][0]["attempts"], self.last_json(done)["result"]), (2, 7), done)
        self.until_status("b", "lost")

    def test_a_save_of_rank_0_is_completed_when_another_rank_fails_and_the_head_dies(self):
        self.cluster(["a", "b"], slots=1)
        client, rank = self.keeps("goes on", "--grace", "10m")
        self.until_rank_1_fails("goes on")
        self.kill(self.head_process)
        self.head()
        for name in "ab":
            self.until_status(name, "up")
        os.kill(rank, signal.SIGCONT)
        done = self.exits(0, self.end(client))
        self.assertEqual((self.last_json(done)["tasks"][0]["attempts"], self.last_json(done)["result"]), (2, 7), done)

    def test_a_save_that_exceeds_the_grace_period_is_abandoned(self):
        client, _ = self.keeps("waits", "--jobs", "2", "--grace", "1s")
        self.until_rank_1_fails("waits")
        done = self.exits(0, self.end(client))
        self.assertEqual((self.last_json(done)["tasks"][0]["attempts"], self.last_json(done)["result"]), (2, 0), done)

    def test_a_run_that_is_cancelled_while_rank_0_saves_is_cancelled(self):
        client, rank = self.keeps("goes on", "--jobs", "2", "--grace", "10m")
        self.until_rank_1_fails("goes on")
        self.good("cancel", "last")
        os.kill(rank, signal.SIGCONT)
        self.exits(1, self.end(client))
        self.assertEqual((self.show()["status"], self.tasks()["train"]["attempts"]), ("cancelled", 1))

    def test_an_elastic_gang_continues_with_fewer_ranks(self):
        self.write("train.lua", train_script("{ min = 2, max = 3 }").replace("  return w\n", "  return { ranks = ctx.ranks, all = ctx.comm:all_reduce(1) }\n"))
        self.cluster(["a", "b", "c"], slots=1)
        client = self.train_until(3)
        self.assertEqual(sum(len(node["tasks"]) for node in self.nodes().values()), 3)
        self.kill(self.workers["b"])
        self.open_steps(4, 6)
        done = self.exits(0, self.end(client))
        self.assertEqual((self.last_json(done)["tasks"][0]["attempts"], self.last_json(done)["result"]), (2, {"ranks": 2, "all": 2}), done)

    def test_an_elastic_gang_grows_when_resources_are_free_again(self):
        script = train_script("{ min = 1, max = 3 }").replace("step * (ctx.rank + 1))", 'step, "mean")')
        self.write("train.lua", script)
        alone = self.result("run", "train.lua", "--state", "alone", "--jobs", "1")
        self.env["FLOW_GROW_AFTER"] = "0s"
        self.cluster(["a", "b", "c"], slots=1)
        client = self.train_until(2)
        self.kill(self.workers["b"])
        self.until_status("b", "lost")
        self.until("it goes on with two", lambda: self.tasks()["train"]["attempts"] == 2)
        self.worker("d", slots=1)
        self.until_status("d", "up")
        self.open_steps(3, 5)
        # It waits in its last step, or in the first step of the larger attempt.
        self.until("it grows", lambda: re.search("asked to stop|restarted", self.flow("why", "last", "train").out))
        self.open_steps(6, 6)
        done = self.exits(0, self.end(client))
        task = self.last_json(done)["tasks"][0]
        self.assertEqual((task["attempts"], task["ranks"], task["grew_from"]), (3, 3, 2), done)
        self.assertEqual(self.last_json(done)["result"], alone)
        self.assertIn("restarted with 3 ranks after 2", self.good("show").out)

    def test_workers_that_flow_starts_run_a_gang(self):
        self.write("sums.lua", SUM)
        done = self.good("run", "sums.lua", "--json", "--workers", "3", "--jobs", "3")
        self.assertEqual(self.last_json(done)["result"]["total"], 3000)

    def test_a_gang_survives_a_killed_head(self):
        alone = self.trains_alone(2)
        self.cluster(["a", "b"], slots=1)
        client = self.train_until(2)
        self.kill(self.head_process)
        self.open_steps(3, 4)
        time.sleep(1)
        self.head()
        self.open_steps(5, 6)
        done = self.exits(0, self.end(client))
        task = self.last_json(done)["tasks"][0]
        self.assertEqual((task["attempts"], self.last_json(done)["result"]), (1, alone), done)

    def test_a_stopped_run_resumes_from_its_checkpoint(self):
        alone = self.trains_alone(2)
        client = self.train_until(2, "--jobs", "2")
        client.send_signal(signal.SIGINT)
        self.exits(3, self.end(client))
        self.open_steps(3, 6)
        self.assertEqual(self.last_json(self.good("resume", "last", "--json", "--jobs", "2"))["result"], alone)


if __name__ == "__main__":
    place.main()
