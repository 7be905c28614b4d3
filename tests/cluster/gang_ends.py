#!/usr/bin/env python3
"""Gangs on two machines end once: processes that exit at a gang's end are not failures. Workers run
in separate process namespaces, so that their ranks share no memory."""
import subprocess
import sys

import cluster_place
import machines
from cluster_place import place

GANGS = 150  # per kind
PAIRS = 2    # of workers, each with one gang at a time

SCRIPT = r'''
local flow = require "flow"
local shells, luas = {}, {}
for pair = 1, PAIRS do
  local where = "pair == " .. pair
  shells[pair] = flow.shell("shell" .. pair, { ranks = 2, cache = false, where = where, args = { "i" }, command = [[ true {i} ]] })
  luas[pair] = flow.task("lua" .. pair, { ranks = 2, cache = false, where = where }, function(ctx, i)
    return ctx.comm:all_reduce(i)
  end)
end
return flow.pipeline("ends", {}, function()
  local all = {}
  for i = 1, GANGS do
    shells[i % PAIRS + 1](i)
    all[i] = luas[i % PAIRS + 1](i)
  end
  return all
end)
'''


class Ends(cluster_place.ClusterPlace):
    def start_on(self, machine, *words):
        return self.start(*words, before=machines.APART if words[0] == "worker" else ())

    def test_every_gang_takes_one_attempt(self):
        self.write("ends.lua", SCRIPT.replace("PAIRS", str(PAIRS)).replace("GANGS", str(GANGS)))
        self.head("--expect-workers", str(2 * PAIRS))
        for pair in range(1, PAIRS + 1):
            for side in "a", "b":
                self.worker("%s%d" % (side, pair), "--label", "pair=%d" % pair, slots=1)
        done = self.good("run", "ends.lua", "--json")
        last = self.last_json(done)
        self.assertEqual(last["result"], [2 * i for i in range(1, GANGS + 1)])
        tasks = last["tasks"]
        self.assertEqual(len(tasks), 2 * GANGS)
        self.assertEqual({frozenset(task["worker"].split(", ")) for task in tasks},
                         {frozenset(("a%d" % pair, "b%d" % pair)) for pair in range(1, PAIRS + 1)})
        self.assertEqual([task["name"] for task in tasks if task["attempts"] != 1], [], done)


if __name__ == "__main__":
    try:
        subprocess.run([*machines.APART, "true"], check=True, stderr=subprocess.PIPE)
    except (subprocess.CalledProcessError, OSError) as error:
        print("skipped: process namespaces can't be made here: %s" % error)
        sys.exit(77)
    place.main()
