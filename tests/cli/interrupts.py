#!/usr/bin/env python3
"""Signals that arrive just after the start of the command, and at its exit.

usage: interrupts.py --flow BIN [TEST...]
"""
import os
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

# Sends a signal to `flow` itself when it first reads the handler of SIGPIPE, which precedes all its
# work, and at its exit.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
static void send(const char* when) {
  const char* number = getenv(when);
  if (number && strcmp(program_invocation_short_name, "flow") == 0) raise(atoi(number));
}
int sigaction(int number, const struct sigaction* action, struct sigaction* before) {
  static int (*real)(int, const struct sigaction*, struct sigaction*);
  if (!real) real = dlsym(RTLD_NEXT, "sigaction");
  int failed = real(number, action, before);
  if (number == SIGPIPE && action) send("SIGNAL_EARLY");
  return failed;
}
static void leave(void) { send("SIGNAL_LATE"); }
__attribute__((constructor)) static void begin(void) { atexit(leave); }
"""
SCRIPT = """
local flow = require "flow"
local one = flow.shell("one", { args = { "code", "gate" }, command = "while [ ! -e {gate} ]; do sleep 0.05; done; exit {code}" })
return flow.pipeline("one", { code = flow.param.int { default = 0 }, gate = flow.param.string { default = "/" } }, function(p)
  return one(p.code, p.gate)
end)
"""


class Interrupts(Place):
    def setUp(self):
        super().setUp()
        self.write("pipeline.lua", SCRIPT)
        self.write("shim.c", SHIM)
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", self.path("shim.so"), self.path("shim.c")], check=True)

    def signalled(self, when, number, *words):
        return self.flow(*words, LD_PRELOAD=self.path("shim.so"), **{when: str(int(number))})

    def test_an_immediate_signal_leaves_a_run_to_resume(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number):
                gate = "gate%d" % number
                words = ("run", ".", "--grace", "0", "--param", "gate=" + self.path(gate))
                self.exits(3, self.signalled("SIGNAL_EARLY", number, *words), "stopping as soon as the run is created")
                self.assertEqual(self.show()["status"], "interrupted")
                self.exits(3, self.signalled("SIGNAL_EARLY", number, "resume", "--grace", "0"))
                self.open(gate)
                self.good("resume")
                self.assertEqual(self.show()["status"], "succeeded")

    def test_a_head_and_a_worker_end_in_order_after_an_immediate_signal(self):
        self.exits(0, self.signalled("SIGNAL_EARLY", signal.SIGTERM, "head", "--listen", "127.0.0.1:0"))
        joins = ("worker", "--join", "127.0.0.1:9", "--secret-file", self.path(".flow", "secret"), "--dir", self.path("worker"))
        for number in (signal.SIGTERM, signal.SIGUSR2):
            self.exits(0, self.signalled("SIGNAL_EARLY", number, *joins))

    def test_a_signal_ends_a_read_only_verb(self):
        self.good("run", ".")
        for words in (["ls"], ["show"], ["doctor"], ["worker", "--show"]):
            done = self.signalled("SIGNAL_EARLY", signal.SIGINT, *words)
            self.assertEqual((done.code, done.out), (-signal.SIGINT, ""), words)

    def test_a_signal_at_the_end_does_not_change_the_exit_code(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            self.exits(0, self.signalled("SIGNAL_LATE", number, "run", "."), "succeeded")
            self.exits(1, self.signalled("SIGNAL_LATE", number, "run", ".", "--param", "code=4"), "exit code 4")
            self.exits(2, self.signalled("SIGNAL_LATE", number, "run", "none.lua"), "none.lua")


COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

if __name__ == "__main__":
    if COMPILER is None:
        print("skipped: no C compiler")
        raise SystemExit(77)
    main()
