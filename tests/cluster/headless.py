#!/usr/bin/env python3
"""Workers continue their attempts for a minute without a head, or for the seconds of FLOW_AWAY_SECONDS. Waiting tasks
sleep, so that other tests may run at the same time."""
import os
import time

import cluster_place
from cluster_place import place

AWAY_SECONDS = int(os.environ.get("FLOW_AWAY_SECONDS", "60"))
TASKS = 10
# Tasks up to `early` end once the gate of that name exists, the others at `late`.
LONG = r'''
local flow = require "flow"
local long = flow.shell("long", { args = { "gate", "label" }, command = [[
  echo {label} >> {gate}.started; while [ ! -e {gate} ]; do sleep 1; done; echo {label}]] })
return flow.pipeline("long", { folder = flow.param.string {}, count = flow.param.int {} }, function(p)
  local all = {}
  for i = 1, p.count do all[i] = long(p.folder .. (i <= 3 and "/early" or "/late"), "item" .. i).stdout end
  return all
end)
'''


class Headless(cluster_place.ClusterPlace):
    def started(self):
        return sorted(self.read("early.started").split() + self.read("late.started").split())

    def test_ten_long_tasks_run_once_although_their_head_is_dead(self):
        labels = ["item%d" % i for i in range(1, TASKS + 1)]
        self.write("long.lua", LONG)
        self.cluster(["a", "b"], slots=TASKS // 2)
        client = self.start("run", "long.lua", "--json", "--param", "folder=" + self.folder, "--param", "count=%d" % TASKS)
        for i, label in enumerate(labels):
            self.until_holds(label, "early" if i < 3 else "late")
        self.kill(self.head_process)
        self.open("early")
        time.sleep(AWAY_SECONDS)
        self.head()
        for name in "ab":
            self.until_status(name, "up")
        self.open("late")
        run = self.last_json(self.exits(0, self.end(client)))
        self.assertEqual(run["result"], [label + "\n" for label in labels])
        self.assertEqual([task["attempts"] for task in run["tasks"]], [1] * TASKS)
        self.assertEqual(self.started(), sorted(labels))


if __name__ == "__main__":
    place.main()
