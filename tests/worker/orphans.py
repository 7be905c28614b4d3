#!/usr/bin/env python3
"""Any process may be killed with -9 at any time: none of its children continues, and nothing is left behind.

usage: orphans.py --flow BIN [TEST...]
"""
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402
from stopping import HEAD, processes_with  # noqa: E402

# One process that stays in its group, one in its own session and folder, and, if a control group
# can be created, one that also cleared its environment.
FORGETFUL = "(cd / && setsid env -i /bin/sleep {marker}) &"
FAMILY = HEAD + r'''
local family = flow.shell("family", { args = { "gate", "marker" }, command = [[
  sleep {marker} &
  (cd / && setsid sleep {marker}) &
  FORGETFUL
  echo family >> {gate}.started
  while [ ! -e {gate} ]; do sleep 0.05; done
  echo done
]] })
return flow.pipeline("family", { gate = flow.param.string {}, marker = flow.param.string {} }, function(p)
  return family(p.gate, p.marker).stdout
end)
'''
# Runs a program without control groups.
WITHOUT_CGROUPS = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"', "sh"]


class Orphans(Place):
    before = ()

    def start(self, *words, **env):
        return super().start(*words, before=self.before, **env)

    def has_cgroups(self):
        checks = {line["check"]: line for line in self.flow("doctor", "--json").lines()}
        return checks["memory limits"]["verdict"] == "ok"

    def begin(self):
        self.size = 3 if self.has_cgroups() else 2
        self.write("family.lua", FAMILY.replace("FORGETFUL", FORGETFUL if self.size == 3 else "true"))
        self.marker = "%d.%d" % (800000 + os.getpid(), abs(hash(self._testMethodName)) % 1000)
        run = self.start("run", "family.lua", "--param", "gate=" + self.path("gate"), "--param",
                         "marker=" + self.marker)
        self.until_holds("family")
        self.until("the family runs", lambda: len(self.family()) == self.size)
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
        self.until("only the new family runs", lambda: len(self.family()) == self.size)
        self.open("gate")
        self.exits(0, self.end(again))
        self.assertEqual(self.show()["result"], "done\n")
        self.assertEqual(self.family(), [])
        self.assertEqual(self.executors(), [])
        self.assertEqual(os.listdir(self.path(".flow", "scratch", "slots")), [])
        self.assertEqual(self.cgroups(), [])

    def test_when_the_head_is_killed_its_tasks_end(self):
        run = self.begin()
        self.kill(run)
        self.until("nothing is left", lambda: not self.family() and not self.executors())
        self.resumed_to_its_end()

    def test_when_head_and_executors_are_killed_the_next_writer_ends_leftovers(self):
        self.end_head_and_executors(self.begin())
        self.resumed_to_its_end()

    def end_head_and_executors(self, run):
        executors = self.executors()
        for pid in [run.pid, *executors]:
            os.kill(pid, signal.SIGSTOP)  # so that none reacts to the end of another
        for pid in [run.pid, *executors]:
            os.kill(pid, signal.SIGKILL)
        self.end(run)
        self.until("the executors are gone", lambda: not self.executors())

    def test_leftovers_are_found_when_the_state_is_named_by_another_path(self):
        self.is_found_by_another_path()

    def test_leftovers_without_control_groups_are_found_by_another_path_too(self):
        if subprocess.run([*WITHOUT_CGROUPS, "true"], stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("control groups can't be hidden here")
        self.before = WITHOUT_CGROUPS
        self.assertFalse(self.has_cgroups())
        self.is_found_by_another_path()

    def is_found_by_another_path(self):
        self.end_head_and_executors(self.begin())
        self.assertNotEqual(self.family(), [])  # otherwise the test proves nothing
        os.symlink(self.folder, self.path("link"))
        self.good("signal", "last", "any", "--state", self.path("link", ".flow"))
        self.assertEqual(self.family(), [])

    def test_other_processes_in_a_scratch_folder_are_not_killed(self):
        run = self.begin()
        (attempt,) = [name for name in os.listdir(self.path(".flow", "scratch")) if name not in ("slots", "id")]
        (folder,) = os.listdir(self.path(".flow", "scratch", attempt))
        person = subprocess.Popen(["sleep", "1000"], cwd=self.path(".flow", "scratch", attempt, folder),
                                  start_new_session=True)
        self.addCleanup(lambda: (person.kill(), person.wait()))
        self.end_head_and_executors(run)
        self.good("signal", "last", "any")
        self.assertEqual(self.family(), [])
        self.assertIsNone(person.poll())

    def test_a_group_with_a_reused_number_is_not_killed(self):
        self.begin_and_end()
        hz = os.sysconf("SC_CLK_TCK")
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        for before, is_left in ((3600 * hz, False), (0, True)):
            other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            self.addCleanup(other.wait)
            self.addCleanup(other.kill)
            with open("/proc/%d/stat" % other.pid) as file:
                began = int(file.read().rsplit(")", 1)[1].split()[19])
            self.write(".flow/scratch/slots/%d" % other.pid, "%s %d %d /\n" % (boot, max(0, began - before), other.pid))
            self.good("gc", "--keep", "10")
            if is_left:
                self.until("the group that the file means is ended", lambda: other.poll() is not None)
            else:
                self.assertIsNone(other.poll())

    def begin_and_end(self):
        run = self.begin()
        self.open("gate")
        self.exits(0, self.end(run))
        self.assertEqual(self.cgroups(), [])

    def test_a_copy_of_a_state_does_not_claim_the_processes_of_the_original(self):
        run = self.begin()
        subprocess.run(["cp", "-a", self.state, self.path("copy")], check=False)  # a socket is not a regular file
        self.flow("signal", "last", "any", "--state", self.path("copy"))
        self.assertEqual(len(self.family()), self.size)
        self.open("gate")
        self.exits(0, self.end(run))

    def cgroups(self):
        """Existing control groups that an engine with this state created."""
        with open(self.path(".flow", "scratch", "id")) as file:
            name = "flow-%s-" % file.read().split()[0]
        return [path for path, _, _ in os.walk("/sys/fs/cgroup") if os.path.basename(path).startswith(name)]

    def test_the_descendants_of_a_killed_executor_are_killed(self):
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
