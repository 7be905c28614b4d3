#!/usr/bin/env python3
"""The wall clock is set during runs and between them: durations stay correct, and newer runs are
listed last."""
import os
import re
import shutil
import subprocess
import time

import place

# Shifts the wall clock of a process by the seconds in $SHIFT_FILE, which it reads at each call.
SHIM = r'''
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long shift(void) {
  const char* path = getenv("SHIFT_FILE");
  char text[32] = {0};
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return 0;
  if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
  close(file);
  return atol(text);
}
int clock_gettime(clockid_t id, struct timespec* t) {
  long failed = syscall(SYS_clock_gettime, id, t);
  if (failed == 0 && id == CLOCK_REALTIME) t->tv_sec += shift();
  return (int)failed;
}
int gettimeofday(struct timeval* restrict t, void* restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec;
  t->tv_usec = now.tv_nsec / 1000;
  return 0;
}
time_t time(time_t* t) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (t) *t = now.tv_sec;
  return now.tv_sec;
}
'''
SCRIPT = '''
local flow = require "flow"
local again = flow.shell("again", { args = { "mark" }, cache = false,
  retries = { max = 1, backoff = "2s" },
  command = [[if [ -e {mark} ]; then echo done; else touch {mark}; exit 1; fi]] })
local wait = flow.task("wait", function(ctx, seconds) return { timed_out = ctx:wait("go", { timeout = seconds .. "s" }) == nil } end)
local one = flow.task("one", function(ctx, n) return n end)
return flow.pipeline("clock", { what = flow.param.string {}, n = flow.param.int { default = 1 },
                                mark = flow.param.string { default = "" } }, function(p)
  if p.what == "again" then return again(p.mark).stdout end
  if p.what == "wait" then return wait(p.n) end
  return one(p.n)
end)
'''
HOUR, YEAR = 3600, 365 * 24 * 3600


class Clock(place.Place):
    def setUp(self):
        super().setUp()
        self.write("clock.lua", SCRIPT)
        self.write("shim.c", SHIM)
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", self.path("shim.so"), self.path("shim.c")], check=True)
        self.set_clock(0)
        self.shifted = {"LD_PRELOAD": self.path("shim.so"), "SHIFT_FILE": self.path("shift")}

    def set_clock(self, seconds):
        """Atomic: the file is read at any time."""
        self.write("shift.new", str(seconds))
        os.rename(self.path("shift.new"), self.path("shift"))

    def run_and_set_clock(self, seconds, *params):
        """Sets the clock once the wait of a run has begun; returns the duration of the run."""
        self.set_clock(0)
        began = time.monotonic()
        words = [word for param in params for word in ("--param", param)]
        process = self.start("run", "clock.lua", *words, **self.shifted)
        self.until_waits(params[0].split("=")[1])
        self.set_clock(seconds)
        self.exits(0, self.end(process))
        return time.monotonic() - began

    def test_a_backoff_keeps_its_length_when_the_clock_is_set(self):
        for jump in (-2 * HOUR, 2 * HOUR):
            with self.subTest(jump):
                took = self.run_and_set_clock(jump, "what=again", "mark=" + self.path("mark%d" % jump))
                self.assertGreater(took, 1.6)  # 2 s, minus a fifth at most

    def test_the_duration_of_a_run_is_correct_when_the_clock_is_set(self):
        for jump in (-2 * HOUR, 2 * HOUR):
            with self.subTest(jump):
                self.set_clock(0)
                words = ("--param", "what=again", "--param", "mark=" + self.path("took%d" % jump))
                process = self.start("run", "clock.lua", *words, **self.shifted)
                self.until_waits("again")
                self.set_clock(jump)
                done = self.exits(0, self.end(process))
                # Hours would come from the clock.
                took = re.search(r"0 failed; (?:(\d+)m )?([0-9.]+)s; state", done.out)
                self.assertTrue(took, done)
                # The backoff is 2 s, minus a fifth at most.
                self.assertGreater(int(took[1] or 0) * 60 + float(took[2]), 1.5)

    def test_a_wait_keeps_its_length_when_the_clock_is_set(self):
        for jump in (-2 * HOUR, 2 * HOUR):
            with self.subTest(jump):
                self.assertGreater(self.run_and_set_clock(jump, "what=wait", "n=2"), 1.9)

    def wait_and_kill(self, seconds):
        process = self.start("run", "clock.lua", "--param", "what=wait", "--param", "n=%d" % seconds, **self.shifted)
        self.until_waits("wait")
        self.kill(process)

    def test_the_time_between_two_processes_counts(self):
        self.wait_and_kill(HOUR)
        self.set_clock(2 * HOUR)
        self.exits(0, self.flow("resume", **self.shifted))
        self.assertEqual(self.show()["result"], {"timed_out": True})

    def test_a_clock_that_is_set_back_between_two_processes_shortens_no_wait(self):
        self.set_clock(2 * HOUR)
        self.wait_and_kill(2)
        self.set_clock(0)
        self.exits(0, self.flow("resume", **self.shifted))

    def test_a_clock_that_is_set_during_a_process_is_the_base_of_the_next_one(self):
        """The clock goes back during the wait and is correct then: the next process counts from
        there."""
        self.set_clock(2 * HOUR)
        process = self.start("run", "clock.lua", "--param", "what=wait", "--param", "n=%d" % HOUR, **self.shifted)
        self.until_waits("wait")
        self.set_clock(0)
        self.good("signal", "last", "other", "1", **self.shifted)  # writes something after that
        self.kill(process)
        self.set_clock(HOUR + 60)
        self.exits(0, self.flow("resume", **self.shifted))

    def test_newer_runs_are_listed_last(self):
        for shift, n in ((YEAR, 1), (0, 2), (-YEAR, 3), (0, 4)):
            self.set_clock(shift)
            self.good("run", "clock.lua", "--param", "what=one", "--param", "n=%d" % n, **self.shifted)
        runs = self.runs()
        self.assertEqual([run["result"] for run in runs], [1, 2, 3, 4])
        self.assertEqual(self.show()["result"], 4)
        # The displayed time is the clock's.
        self.assertGreater(runs[0]["started"], runs[3]["started"])
        self.good("gc", "--keep", "2")
        self.assertEqual([run["result"] for run in self.runs()], [3, 4])


COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

if __name__ == "__main__":
    if COMPILER is None:
        print("skipped: no C compiler")
        raise SystemExit(77)
    place.main()
