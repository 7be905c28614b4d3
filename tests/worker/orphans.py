#!/usr/bin/env python3
"""Whoever is killed, with -9 and at any time: nothing goes on behind its back, and nothing is left.

usage: orphans.py --flow BIN [TEST...]
"""
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402
from stopping import HEAD, processes_with  # noqa: E402

# One that stays in its group, one in a session of its own, one that forgot its environment too.
FAMILY = HEAD + r'''
local family = flow.shell("family", { args = { "gate", "marker" }, command = [[
  sleep {marker} &
  setsid sleep {marker} &
  setsid env -i /bin/sleep {marker} &
  echo family >> {gate}.started
  while [ ! -e {gate} ]; do sleep 0.05; done
  echo done
]] })
return flow.pipeline("family", { gate = flow.param.string {}, marker = flow.param.string {} }, function(p)
  return family(p.gate, p.marker).stdout
end)
'''


class Orphans(Place):
    def begin(self):
        self.write("family.lua", FAMILY)
        self.marker = "%d.%d" % (800000 + os.getpid(), abs(hash(self._testMethodName)) % 1000)
        run = self.start("run", "family.lua", "--param", "gate=" + self.path("gate"), "--param",
                         "marker=" + self.marker)
        self.until_holds("family")
        self.until("the family runs", lambda: len(self.family()) == 3)
        return run

    def family(self):
        return [pid for pid in processes_with(self.marker) if "sleep" in self.name(pid)]

    @staticmethod
    def name(pid):
        try:
            with open("/proc/%d/comm" % pid) as file:
                return file.read()
        except OSError:
            return ""

    def executors(self):
        found = []
        for entry in os.listdir("/proc"):
            try:
                with open("/proc/%s/cmdline" % entry, "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if self.state.encode() in words and words[0].endswith(b"flow-executor"):
                found.append(int(entry))
        return found

    def resumed_to_its_end(self):
        os.remove(self.path("gate.started"))
        again = self.start("resume")
        self.until_holds("family")
        self.until("only the new family runs", lambda: len(self.family()) == 3)
        self.open("gate")
        self.exits(0, self.end(again))
        self.assertEqual(self.show()["result"], "done\n")
        self.assertEqual(self.family(), [])
        self.assertEqual(self.executors(), [])
        self.assertEqual(os.listdir(self.path(".flow", "scratch", "slots")), [])

    def test_when_the_head_is_killed_its_tasks_end(self):
        run = self.begin()
        self.kill(run)
        self.until("nothing is left", lambda: not self.family() and not self.executors())
        self.resumed_to_its_end()

    def test_when_head_and_executors_are_killed_at_once_the_next_writer_ends_what_is_left(self):
        run = self.begin()
        executors = self.executors()
        for pid in [run.pid, *executors]:
            os.kill(pid, signal.SIGSTOP)  # so that none acts on another's end
        for pid in [run.pid, *executors]:
            os.kill(pid, signal.SIGKILL)
        self.end(run)
        self.until("the executors are gone", lambda: not self.executors())
        self.resumed_to_its_end()

    def test_an_executor_that_is_killed_takes_its_family_with_it(self):
        run = self.begin()
        before = self.family()
        for pid in self.executors():
            os.kill(pid, signal.SIGKILL)
        done = self.end(run)
        self.exits(1, done, "signal 9")
        self.assertEqual([pid for pid in before if pid in self.family()], [])
        self.resumed_to_its_end()

    def test_a_stopped_executor_does_not_stop_the_end(self):
        run = self.begin()
        for pid in self.executors():
            os.kill(pid, signal.SIGSTOP)
        self.good("cancel", "last")
        run.send_signal(signal.SIGINT)
        run.send_signal(signal.SIGINT)
        self.assertIn(self.end(run).code, (1, 3))
        self.assertEqual((self.family(), self.executors()), ([], []))


if __name__ == "__main__":
    main()
