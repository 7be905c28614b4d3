#!/usr/bin/env python3
"""Results copied out by `flow get -o` and `flow run --out`: names, modes, and existing files.

usage: copies.py --flow BIN [TEST...]
"""
import json
import os
import signal
import stat
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from place import HOLD, OPTIONS, Place, main  # noqa: E402, F401

HEAD = 'local flow = require "flow"\n'


class Copies(Place):
    def run_out(self, tasks, body, *words, umask=None):
        self.write("p.lua", HEAD + tasks + '\nreturn flow.pipeline("p", {}, function()\n' + body + "\nend)\n")
        before = os.umask(umask) if umask is not None else None
        try:
            return self.good("run", "p.lua", "--out", "out", *words)
        finally:
            if before is not None:
                os.umask(before)

    def names(self):
        return sorted(os.listdir(self.path("out")))

    def out(self, name):
        with open(self.path("out", name), "rb") as file:
            return file.read()

    def mode(self, name):
        return stat.S_IMODE(os.stat(self.path("out", name)).st_mode)

    def large(self):
        """An input that is read in place: it is read again from its path when it is copied."""
        with open(self.path("large"), "wb") as large:
            large.truncate((64 << 20) + 1)

    def endless(self):
        os.unlink(self.path("large"))
        os.mkfifo(self.path("large"))

    def temporaries(self):
        return [name for name in self.names() if name.startswith(".flow-")] if os.path.exists(self.path("out")) else []

    def stop_copying(self, process, number):
        """Sends the signal when part of `large` is copied, and lets the copy continue until it
        ends."""
        pipe = []

        def is_open():
            try:
                pipe.append(os.open(self.path("large"), os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                self.assertIsNone(process.poll())
            return pipe

        self.until("the copy begins", is_open)
        is_sent = False

        def has_ended():
            nonlocal is_sent
            try:
                for _ in range(64):
                    os.write(pipe[0], bytes(1 << 16))
            except (BlockingIOError, BrokenPipeError):
                pass
            if not is_sent and any(os.path.getsize(self.path("out", name)) for name in self.temporaries()):
                process.send_signal(number)
                is_sent = True
            return process.poll() is not None

        try:
            self.until("the copy ends", has_ended)
        finally:
            os.close(pipe[0])
        return self.end(process)

    def test_a_signal_ends_a_copy_and_the_next_one_removes_the_leftovers_of_a_killed_one(self):
        self.write("p.lua", HOLD + '''
return flow.pipeline("p", { file = flow.param.path {}, gate = flow.param.string {} }, function(p)
  return { p.file, hold(p.gate, "held").stdout }
end)''')
        self.large()
        run = self.start("run", "p.lua", "--out", "out", "--param", "file=large", "--param", "gate=" + self.path("gate"))
        self.until_holds("held")
        self.endless()
        self.open("gate")
        self.exits(3, self.stop_copying(run, signal.SIGINT), "interrupted", "flow get")
        self.assertEqual(self.names(), [])
        self.assertEqual(self.show()["status"], "succeeded")
        self.exits(3, self.stop_copying(self.start("get", "-o", "out"), signal.SIGTERM), "interrupted")
        self.assertEqual(self.names(), [])
        self.stop_copying(self.start("get", "-o", "out"), signal.SIGKILL)
        self.assertEqual(len(self.temporaries()), 1)
        own = [".flow-copy-of-something-else", ".flow-environments", ".flow-notes", ".flow-part-folder"]
        for name in own[:3]:
            self.write("out/" + name, "the user's own")
        os.mkdir(self.path("out", own[3]))
        os.unlink(self.path("large"))
        self.large()
        self.good("get", "-o", "out")
        self.assertEqual(self.names(), own + ["large", "result.json"])

    def test_files_with_names_like_temporary_ones_are_kept(self):
        os.mkdir(self.path("out"))
        for name in ("b.flow-part", "a.tmp"):
            self.write(os.path.join("out", name), "the user's own")
        self.run_out('local t = flow.shell("t", { outputs = { a = "a.flow-part", b = "a", c = "b" },'
                     " command = [[echo first > a.flow-part; echo second > a; echo third > b]] })",
                     "local h = t() return { h.a, h.b, h.c }")
        self.assertEqual(self.names(), ["a", "a.flow-part", "a.tmp", "b", "b.flow-part", "result.json"])
        self.assertEqual([self.out("a.flow-part"), self.out("a"), self.out("b"), self.out("b.flow-part")],
                         [b"first\n", b"second\n", b"third\n", b"the user's own"])

    def test_names_may_be_as_long_as_the_system_allows(self):
        long, many = "x" * 251 + ".txt", "\u00e9" * 127
        self.run_out('local t = flow.shell("t", { args = { "a", "b" }, outputs = { a = "{a}", b = "{b}", d = "d" },'
                     " command = [[echo 1 > {outputs.a}; seq 50000 > {outputs.b}; mkdir d; echo 2 > d/{b}]] })\n"
                     'local n = flow.task("n", function() return flow.tensor { 1 } end)',
                     'local h = t("%s", "%s") return { h, t("%s", "%s").a, [("k.y"):rep(200)] = n() }'
                     % (long, many, long, "other"))
        self.assertEqual(self.out(long), b"1\n")
        self.assertEqual(len(self.out(many)), 288894)
        self.assertEqual(os.listdir(self.path("out", "d")), [many])
        second = "x" * 249 + "-2.txt"  # of an equal name, truncated to the maximum
        self.assertEqual(self.out(second), b"1\n")
        (tensor,) = [name for name in self.names() if name.endswith(".npy")]
        self.assertEqual(len(tensor), 255)

    def test_modes_follow_the_umask(self):
        tasks = ('local t = flow.shell("t", { outputs = { o = "o", x = "x", big = "big" }, command = [[umask 077;'
                 " echo 1 > o; echo 2 > x; chmod 700 x; seq 50000 > big]] })\n"
                 'local n = flow.task("n", function() return flow.tensor { 1.5 } end)')
        for umask in (0o077, 0o002, 0o022):
            with self.subTest(oct(umask)):
                self.run_out(tasks, "local h = t() return { h.o, h.x, h.big, tensor = n() }", umask=umask)
                modes = {name: self.mode(name) for name in self.names()}
                plain = 0o666 & ~umask
                self.assertEqual(modes, {"o": plain, "x": 0o777 & ~umask, "big": plain, "tensor.npy": plain,
                                         "result.json": plain})

    def test_bfloat16_is_written_as_the_float32_of_the_same_value(self):
        self.run_out('local n = flow.task("n", function() return flow.tensor({ 1.5, -2, 3 }):to("bf16") end)',
                     "return { w = n() }")
        data = self.out("w.npy")
        size = struct.unpack("<H", data[8:10])[0]
        self.assertIn(b"'descr': '<f4'", data[10:10 + size])
        self.assertIn(b"(3,)", data[10:10 + size])
        self.assertEqual(struct.unpack("<3f", data[10 + size:]), (1.5, -2.0, 3.0))

    def test_a_failed_copy_leaves_no_partial_file(self):
        self.run_out('local t = flow.shell("t", { outputs = { o = "o" }, command = [[seq 50000 > o]] })',
                     "return { t().o }")
        digest = json.loads(self.out("result.json"))[0]["$file"]["digest"]
        path = os.path.join(self.state, "objects", digest[:2], digest[2:])
        os.chmod(path, 0o600)
        with open(path, "r+b") as file:
            file.write(b"other")
        self.exits(4, self.flow("get", "last", "-o", "again"), "damaged")
        self.assertEqual(os.listdir(self.path("again")), [])


if __name__ == "__main__":
    main()
