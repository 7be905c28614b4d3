#!/usr/bin/env python3
"""Runs every verb on a state with a finished run, under each limit that a process can have: the
verb works or ends with a documented exit code and a message, never by a signal, and the state stays
intact."""
import os
import resource
import shutil
import subprocess
import tempfile

import place
import room

SCRIPT = '''
local flow = require "flow"
local text = flow.task("text", function(ctx, n) return string.rep("line of text\\n", n) end)
local file = flow.shell("file", { args = { "text" }, outputs = { out = "out.txt" }, command = "printf %s {text} > out.txt" })
return flow.pipeline("limits", { n = flow.param.int { default = 10 } }, function(p) return file(text(p.n)).out end)
'''
EXIT_CODES = {0: "done", 1: "a task failed", 2: "wrong", 3: "interrupted", 4: "unreachable"}


def limits(number, value):
    return lambda: resource.setrlimit(number, (value, value))


def lose_working_folder():
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)


def close_streams():
    for number in (0, 1, 2):
        os.close(number)


class Limits(place.Place):
    def setUp(self):
        super().setUp()
        self.write("pipeline.lua", SCRIPT)
        self.script, self.scratch = self.path("pipeline.lua"), self.path("scratch")
        os.mkdir(self.scratch)
        self.good("run", ".")
        self.state_before = self.path("before")
        shutil.copytree(self.state, self.state_before)
        self.n = 100

    def verbs(self):
        """Verbs that write come last, gc first among them, because it frees space."""
        self.n += 1
        out = self.path("scratch", str(self.n))
        reads = [["ls"], ["show"], ["logs"], ["why"], ["diff", "last", "last"], ["get", "last", "-o", out], ["nodes"],
                 ["graph", self.script], ["plan", self.script, "--param", "n=%d" % self.n], ["doctor"]]
        writes = [["gc"], ["signal", "last", "go", "1"], ["cancel", "last"], ["resume", "last"], ["retry", "last", "file"],
                  ["run", self.script, "--param", "n=%d" % self.n]]
        apart = [["lint", self.script], ["init", out + "-new"], ["completion", "bash"], ["repl"]]
        return [[*words, "--state", self.state] for words in reads + writes] + apart

    def ends(self, words, before=(), preexec=None, env=None):
        process = subprocess.Popen([*before, place.OPTIONS.flow, *words], cwd=self.folder, env=env or self.env,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=preexec)
        self.processes.append(process)
        done = self.end(process)
        self.assertIn(done.code, EXIT_CODES, (words, str(done)))
        if preexec is not close_streams and done.code != 0:
            self.assertNotEqual(done.err + done.out, "", (words, str(done)))
        return done

    def each_verb(self, **how):
        """The exit code of each verb."""
        codes = {}
        for words in self.verbs():
            with self.subTest(words[0]):
                codes[words[0]] = self.ends(words, **how).code
        return codes

    def all_work(self, codes):
        """There is no process for `nodes`, and no run to cancel or to signal; a machine may have
        faults."""
        self.assertLessEqual({verb for verb, code in codes.items() if code != 0}, {"nodes", "cancel", "signal", "doctor"})

    def whole(self):
        """Without the limit everything works again."""
        self.assertEqual({run["status"] for run in self.runs()} - {"succeeded", "interrupted", "failed"}, set())
        self.n += 1
        self.good("run", ".", "--param", "n=%d" % self.n)
        shutil.rmtree(self.state)
        shutil.copytree(self.state_before, self.state)

    def test_without_a_limit(self):
        self.all_work(self.each_verb())
        self.whole()

    def test_without_home_working_folder_or_streams(self):
        env = dict(self.env)
        env.pop("HOME", None)
        free = self.each_verb()
        for name, how in {"no home": {"env": env}, "no working folder": {"preexec": lose_working_folder},
                          "closed streams": {"preexec": close_streams}}.items():
            with self.subTest(name):
                codes = self.each_verb(**how)
                if name == "no home":
                    self.assertEqual(codes, free)
                if name == "no working folder":
                    self.assertEqual({v for v in codes if codes[v] != free[v]} - {"repl"}, set(), codes)
                self.whole()

    def test_with_few_files(self):
        for count in (12, 40):
            with self.subTest(count):
                self.each_verb(preexec=limits(resource.RLIMIT_NOFILE, count))
                self.whole()

    def test_tasks_have_the_file_limit_of_flow(self):
        self.write("files.lua", """
local flow = require "flow"
local files = flow.shell("files", { command = [[ulimit -Sn; ulimit -Hn]] })
return flow.pipeline("files", {}, function() return files().stdout end)
""")
        soft, hard = 250, min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4000)
        self.ends(["run", "files.lua"], preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)))
        self.assertEqual(self.show()["result"], "%d\n%d\n" % (soft, hard))

    def test_with_little_memory(self):
        for megabytes in (150, 250):
            with self.subTest(megabytes):
                self.each_verb(preexec=limits(resource.RLIMIT_AS, megabytes << 20))
                self.whole()

    def test_a_state_is_not_opened_with_too_little_memory(self):
        done = self.ends(["show", "--state", self.state], preexec=limits(resource.RLIMIT_AS, 150 << 20))
        self.assertEqual(done.code, 4)
        self.assertIn("limited to 150 MiB", done.err)

    def test_with_a_small_stack(self):
        for kilobytes in (64, 256):
            with self.subTest(kilobytes):
                self.all_work(self.each_verb(preexec=limits(resource.RLIMIT_STACK, kilobytes << 10)))
                self.whole()

    def test_with_a_small_file_size_limit(self):
        for size in (0, 4096):
            with self.subTest(size):
                self.each_verb(preexec=limits(resource.RLIMIT_FSIZE, size))
                self.whole()

    def test_without_proc(self):
        self.each_verb(before=["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$0" "$@"'])
        self.whole()

    def test_on_a_full_disk(self):
        for free in (0, 60 << 10):
            with self.subTest(free):
                room.mount("-t", "tmpfs", "-o", "mode=0700,size=8m", "none", self.state)
                shutil.copytree(self.state_before, self.state, dirs_exist_ok=True)
                self.fill(free)
                codes = self.each_verb()
                if free == 0:
                    self.assertEqual(codes["run"], 4)
                os.unlink(os.path.join(self.state, "filler"))
                self.good("gc")
                self.good("run", ".", "--param", "n=%d" % self.n)
                subprocess.run(["umount", "-l", self.state], check=True)

    def fill(self, free):
        with open(os.path.join(self.state, "filler"), "wb") as filler:
            info = os.statvfs(self.state)
            filler.write(b"\1" * (info.f_bavail * info.f_frsize - free))


if __name__ == "__main__":
    room.own_mounts()
    place.main()
