#!/usr/bin/env python3
"""Shell tasks in containers. podman really runs, with an image that the test makes of programs of this machine; where it
cannot run these tests are skipped. docker is a program of the test that records its arguments.

usage: containers.py --flow BIN [TEST...]
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

CONF = """[containers]
default_ulimits=["nofile=1024:1024","nproc=1024:1024"]
[engine]
runtime="runc"
cgroup_manager="cgroupfs"
events_logger="none"
"""
STORAGE = """[storage]
driver="vfs"
runroot="%s/run"
graphroot="%s/graph"
"""
BASH, BUSYBOX = "/bin/bash-static", "/bin/busybox"
APPLETS = ("sh", "cat", "ls", "id", "sleep", "env", "touch", "wc", "head", "tr", "stat", "tail")


class Containers(Place):
    """What is common to all runtimes."""

    def script(self, options, command, name="p", more=""):
        self.write(name + ".lua", 'local flow = require "flow"\n'
                   'local t = flow.shell("t", { %s, command = [[%s]] })\n'
                   'return flow.pipeline("p", {%s}, function(p) return { out = t(%s).stdout } end)\n'
                   % (options, command, "f = flow.param.path {}" if more else "", more))
        return name + ".lua"

    def last(self, done, code=0):
        return self.exits(code, done).lines()[-1]


class Podman(Containers):
    IMAGE = "localhost/flow-test:1"

    @classmethod
    def setUpClass(cls):
        for program in (BASH, BUSYBOX):
            if not os.path.exists(program):
                raise unittest.SkipTest("%s is not installed" % program)
        if not shutil.which("podman") or not shutil.which("runc", path="/usr/sbin:/sbin:" + os.environ["PATH"]):
            raise unittest.SkipTest("podman and runc are not installed")

    def setUp(self):
        super().setUp()
        for name, text in (("containers.conf", CONF), ("storage.conf", STORAGE % (self.folder, self.folder))):
            self.write(name, text)
        self.env.update(CONTAINERS_CONF=self.path("containers.conf"), CONTAINERS_STORAGE_CONF=self.path("storage.conf"))
        self.make_image(self.IMAGE, "one")
        done = subprocess.run(["podman", "run", "--rm", "--network", "host", self.IMAGE, "bash", "-c", "echo runs"],
                              env=self.env, capture_output=True, text=True)
        if done.stdout != "runs\n":
            self.skipTest("podman cannot run here: " + done.stderr[-300:])

    def clean(self):
        subprocess.run(["podman", "rm", "--all", "--force"], env=self.env, capture_output=True)
        super().clean()

    def podman(self, *words):
        return subprocess.run(["podman", *words], env=self.env, check=True, capture_output=True, text=True).stdout

    def make_image(self, name, mark, with_bash=True):
        tree = self.path("tree")
        shutil.rmtree(tree, ignore_errors=True)
        for folder in ("bin", "etc", "tmp", "root"):
            os.makedirs(os.path.join(tree, folder))
        if with_bash:
            shutil.copy(BASH, os.path.join(tree, "bin/bash"))
        shutil.copy(BUSYBOX, os.path.join(tree, "bin/busybox"))
        for applet in APPLETS:
            os.symlink("busybox", os.path.join(tree, "bin", applet))
        with open(os.path.join(tree, "etc/mark"), "w") as out:
            out.write(mark + "\n")
        with tarfile.open(self.path("tree.tar"), "w") as archive:
            archive.add(tree, ".")
        self.podman("import", self.path("tree.tar"), name)

    def containers(self):
        return self.podman("ps", "--all", "--format", "{{.Names}}").split()

    def options(self, more=""):
        return 'container = "podman://%s"%s' % (self.IMAGE, more)

    def run_of(self, options, command, code=0):
        return self.last(self.flow("run", self.script(options, command), "--json"), code)

    def test_a_command_runs_in_the_image_as_the_caller(self):
        end = self.run_of(self.options(), "cat /etc/mark; id -u; echo $0")
        self.assertEqual(end["result"]["out"], "one\n%d\nbash\n" % os.getuid())
        self.assertEqual(self.containers(), [])

    def test_outputs_belong_to_the_caller_and_before_runs_inside(self):
        self.write("p.lua", 'local flow = require "flow"\n'
                   'local t = flow.shell("t", { %s, before = "word=$(cat /etc/mark)", outputs = { o = "o.txt" },\n'
                   '  command = [[echo $word > {outputs.o}]] })\n'
                   'return flow.pipeline("p", {}, function() return { o = t().o } end)\n' % self.options())
        self.good("run", "p.lua", "--out", self.path("out"))
        out = [os.path.join(at, name) for at, _, names in os.walk(self.path("out")) for name in names if name == "o.txt"]
        with open(out[0]) as file:
            self.assertEqual(file.read(), "one\n")
        self.assertEqual(os.stat(out[0]).st_uid, os.getuid())

    def test_inputs_that_are_links_are_read_in_the_container(self):
        self.write("small.txt", "small\n")
        with open(self.path("large.txt"), "w") as out:
            out.write("large\n")
            out.truncate((64 << 20) + 1)  # read in place
        for name in ("small", "large"):
            script = self.script(self.options(', args = { "f" }'), "head -n 1 {f}", name, "p.f")
            end = self.last(self.flow("run", script, "--param", "f=" + self.path(name + ".txt"), "--json"))
            self.assertEqual(end["result"]["out"], name + "\n")

    def test_a_result_of_another_task_is_read_in_the_container(self):
        self.write("p.lua", 'local flow = require "flow"\n'
                   'local make = flow.shell("make", { outputs = { o = "o.txt" }, command = [[head -c 3000000 /dev/zero > {outputs.o}]] })\n'
                   'local t = flow.shell("t", { %s, args = { "f" }, command = [[wc -c < {f}]] })\n'
                   'return flow.pipeline("p", {}, function() return { out = t(make().o).stdout } end)\n' % self.options())
        self.assertEqual(self.last(self.flow("run", "p.lua", "--json"))["result"]["out"], "3000000\n")

    def test_variables_and_secrets_arrive_and_are_on_no_command_line(self):
        secret = "s3cr3t-value-of-the-test"
        options = self.options(', env = { PLAIN = "a b", TOKEN = flow.env("TOKEN"), LINES = "1\\n2" }')
        self.write("p.lua", 'local flow = require "flow"\n'
                   'local t = flow.shell("t", { %s, command = [[echo "$PLAIN|$LINES|${#TOKEN}"; echo $TOKEN; '
                   'touch ready; while [ ! -e go ]; do sleep 0.1; done]] })\n'
                   'return flow.pipeline("p", {}, function() return { out = t().stdout } end)\n' % options)
        run = self.start("run", "p.lua", "--json", TOKEN=secret)
        ready = self.until_file("ready")
        lines = b"".join(self.command_lines())
        self.assertIn(b"--env-file", lines)
        self.assertNotIn(secret.encode(), lines)
        files = [os.path.join(at, name) for at, _, names in os.walk(self.state) for name in names if name.endswith(".env")]
        self.assertEqual([os.stat(name).st_mode & 0o777 for name in files], [0o600])
        open(os.path.join(os.path.dirname(ready), "go"), "w").close()
        end = self.last(self.end(run))
        self.assertEqual(end["result"]["out"], "a b|1\n2|%d\n***\n" % len(secret))

    def until_file(self, name):
        found = []

        def is_there():
            found[:] = [os.path.join(at, name) for at, _, names in os.walk(self.state) if name in names]
            return found
        self.until(name + " is there", is_there)
        return found[0]

    @staticmethod
    def command_lines():
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/cmdline" % pid, "rb") as file:
                    yield file.read()
            except OSError:
                pass

    def test_an_image_without_bash_fails_the_attempt_and_is_named(self):
        self.make_image("localhost/no-bash:1", "none", with_bash=False)
        script = self.script('container = "podman://localhost/no-bash:1"', "true")
        error = self.last(self.flow("run", script, "--json"), 1)["tasks"][0]["error"]
        self.assertIn("the image `podman://localhost/no-bash:1` cannot run its shell `bash`", error)
        end = self.run_of('shell = { "sh", "-eu", "-c" }, container = "podman://localhost/no-bash:1"', "cat /etc/mark")
        self.assertEqual(end["result"]["out"], "none\n")

    def test_the_exit_code_is_that_of_the_command(self):
        for code in (3, 125, 127):
            error = self.run_of(self.options(), "exit %d" % code, 1)["tasks"][0]["error"]
            self.assertNotIn("did not begin", error)
            self.assertIn("`t`", error)

    def test_the_image_is_part_of_the_key_and_its_name_is_not(self):
        script = self.script(self.options(), "cat /etc/mark")
        self.last(self.flow("run", script, "--json"))
        self.podman("tag", self.IMAGE, "localhost/other:1")
        other = self.script('container = "podman://localhost/other:1"', "cat /etc/mark")
        self.assertTrue(self.last(self.flow("run", other, "--json"))["tasks"][0]["cached"])
        self.make_image(self.IMAGE, "two")
        script = self.script(self.options(), "cat /etc/mark")
        end = self.last(self.flow("run", script, "--json"))
        self.assertEqual((end["result"]["out"], end["tasks"][0]["cached"]), ("two\n", False))
        self.assertIn("container", self.good("why", "last", "t").out)

    def test_a_tag_that_moves_during_a_run_changes_nothing(self):
        self.write("p.lua", 'local flow = require "flow"\n'
                   'local wait = flow.shell("wait", { command = [[touch %s; while [ ! -e %s ]; do sleep 0.05; done]] })\n'
                   'local t = flow.shell("t", { %s, command = [[cat /etc/mark]] })\n'
                   'return flow.pipeline("p", {}, function() local w = wait(); return { out = t():after(w).stdout } end)\n'
                   % (self.path("begun"), self.path("go"), self.options()))
        run = self.start("run", "p.lua", "--json")
        self.until("the run waits", lambda: os.path.exists(self.path("begun")))
        self.make_image(self.IMAGE, "two")
        self.open("go")
        self.assertEqual(self.last(self.end(run))["result"]["out"], "one\n")

    def test_an_image_that_cannot_be_pulled_is_exit_2(self):
        script = self.script('container = "podman://localhost:1/none:1"', "true")
        self.exits(2, self.flow("run", script), "the image `podman://localhost:1/none:1` cannot be pulled")

    def test_memory_is_limited(self):
        error = self.run_of(self.options(', memory = "64M"'), "tail /dev/zero", 1)["tasks"][0]["error"]
        # Not every runtime can say that the limit was the reason.
        self.assertRegex(error, "its container needed more memory than its limit of 64|ended with exit code 137")
        self.assertEqual(self.containers(), [])

    # ---- ways of ending an attempt

    def begin(self, *words, more=""):
        script = self.script(self.options(more), "trap 'exit 1' TERM; touch ready; while true; do sleep 0.2; done")
        run = self.start("run", script, *words)
        self.until_file("ready")
        self.assertEqual(len(self.containers()), 1)
        return run

    def executor_of(self, run):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/stat" % pid) as file:
                    words = file.read().rsplit(")", 1)[1].split()
                with open("/proc/%s/environ" % pid, "rb") as file:
                    variables = file.read()
                with open("/proc/%s/comm" % pid) as file:
                    name = file.read().strip()
            except OSError:
                continue
            if int(words[1]) == run.pid and name.startswith("flow-executor") and b"FLOW_SLOT=" in variables:
                if os.path.exists(os.path.join(self.state, "scratch/slots/%s.container" % pid)):
                    return int(pid)
        self.fail("no executor")

    def test_a_timeout_ends_the_container(self):
        script = self.script(self.options(', timeout = "3s"'), "while true; do sleep 0.2; done")
        end = self.last(self.flow("run", script, "--grace", "0s", "--json"), 1)
        self.assertIn("timeout", end["tasks"][0]["error"])
        self.assertEqual(self.containers(), [])

    def test_an_interruption_ends_the_container(self):
        run = self.begin("--grace", "0s")
        run.send_signal(signal.SIGINT)
        self.exits(3, self.end(run))
        self.assertEqual(self.containers(), [])

    def test_two_interruptions_end_the_container(self):
        run = self.begin()
        run.send_signal(signal.SIGINT)
        run.send_signal(signal.SIGINT)
        self.exits(3, self.end(run))
        self.assertEqual(self.containers(), [])

    def test_a_cancelled_run_leaves_no_container(self):
        run = self.begin("--grace", "0s")
        self.good("cancel", "last")
        self.exits(1, self.end(run))
        self.assertEqual(self.containers(), [])

    def test_a_killed_executor_leaves_no_container(self):
        run = self.begin()
        os.kill(self.executor_of(run), signal.SIGKILL)
        self.exits(1, self.end(run))
        self.assertEqual(self.containers(), [])

    def test_a_killed_head_leaves_no_container_after_a_restart(self):
        run = self.begin()
        executor = self.executor_of(run)
        os.kill(executor, signal.SIGKILL)
        self.kill(run)
        self.flow("gc")
        self.assertEqual(self.containers(), [])


class Recorded(Containers):
    """docker as a program that records its arguments and runs the command without a container."""

    DOCKER = r'''#!/usr/bin/env python3
import json, os, subprocess, sys
words = sys.argv[1:]
with open(%(calls)r, "a") as out:
    out.write(json.dumps(words) + "\n")
if words[:2] == ["image", "inspect"]:
    print("sha256:" + "ab" * 32)
elif words[0] == "rm" and os.path.exists(%(kept)r):
    os.unlink(%(kept)r)
    print("docker: container state improper: stopped", file=sys.stderr)
    sys.exit(2)
elif words[0] == "run":
    if os.path.exists(%(fails)r):
        print("docker: no space left on device", file=sys.stderr)
        sys.exit(125)
    sys.exit(subprocess.run(words[words.index("ab" * 32) + 1:]).returncode)
'''

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("bin"))
        self.write("bin/docker", self.DOCKER % {each: self.path(each) for each in ("calls", "fails", "kept")})
        os.chmod(self.path("bin/docker"), 0o755)
        for program in ("bash", "python3", "env", "touch", "cat"):
            os.symlink(shutil.which(program), self.path("bin", program))
        self.env["PATH"] = self.path("bin")

    def calls(self):
        return [json.loads(line) for line in self.read("calls").splitlines()]

    def test_docker_runs_the_image_by_its_id_and_removes_the_container(self):
        end = self.last(self.flow("run", self.script('container = "docker://debian:12"', "echo in"), "--json"))
        self.assertEqual(end["result"]["out"], "in\n")
        runs = [call for call in self.calls() if call[0] == "run"]
        removed = [call for call in self.calls() if call[0] == "rm"]
        self.assertEqual(len(runs), 1)
        name = runs[0][runs[0].index("--name") + 1]
        self.assertEqual(removed, [["rm", "--force", name]])
        self.assertTrue(name.startswith("flow-" + end["run"]))
        self.assertEqual(runs[0][runs[0].index("--user") + 1], "%d:%d" % (os.getuid(), os.getgid()))
        self.assertNotIn("--userns", runs[0])
        slots = os.listdir(os.path.join(self.state, "scratch", "slots"))
        self.assertEqual([each for each in slots if each.endswith(".container")], [])

    def test_a_container_that_is_not_removed_at_first_is_removed_again(self):
        self.open("kept")
        self.last(self.flow("run", self.script('container = "docker://debian:12"', "echo in"), "--json"))
        removed = [call for call in self.calls() if call[0] == "rm"]
        self.assertEqual(len(removed), 2)
        self.assertEqual(removed[0], removed[1])
        slots = os.listdir(os.path.join(self.state, "scratch", "slots"))
        self.assertEqual([each for each in slots if each.endswith(".container")], [])

    def test_a_runtime_that_fails_is_not_the_tasks_failure(self):
        self.open("fails")
        script = self.script('container = "docker://debian:12", retries = { infra = 0 }', "true")
        self.last(self.flow("run", script, "--json"), 1)
        self.assertIn("cause: environment", self.good("why", "last", "t").out)
        self.assertIn("cannot start a container of `docker://debian:12`", self.good("why", "last", "t").out)

    def test_no_runtime_is_exit_2(self):
        os.remove(self.path("bin/docker"))
        self.exits(2, self.flow("run", self.script('container = "docker://debian:12"', "true")),
                   "`docker://debian:12` needs podman, docker or apptainer, and none is in PATH")
        self.write("a.sif", "image")
        self.exits(2, self.flow("run", self.script('container = "a.sif"', "true")), "`a.sif` needs apptainer")

    def test_a_container_with_modules_or_for_a_lua_task_is_an_error(self):
        script = self.script('container = "docker://debian:12", modules = { "gcc" }', "true")
        self.exits(2, self.flow("run", script), "has `container` and also `modules`, `venv` or `conda`")
        self.write("l.lua", 'local flow = require "flow"\n'
                   'local t = flow.task("t", { container = "docker://debian" }, function() end)\n'
                   'return flow.pipeline("p", {}, function() return t() end)\n')
        self.exits(2, self.flow("run", "l.lua"), "the option `container` belongs to flow.shell")


if __name__ == "__main__":
    main()
