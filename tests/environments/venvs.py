#!/usr/bin/env python3
"""Python and conda environments of shell tasks. venv is built by the real python3 and pip, without a network; conda is
a program of the test that records its arguments.

usage: venvs.py --flow BIN [TEST...]
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import unittest
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

CONDA = r'''#!/bin/sh
echo "$@" >> %(calls)s
case $1 in
list) echo "@EXPLICIT"; echo "https://conda/zlib-1.3.conda";;
*)
  for word; do [ "$previous" = --prefix ] && prefix=$word; previous=$word; done
  mkdir -p $prefix/bin $prefix/etc/conda/activate.d
  echo 'echo from conda' > $prefix/bin/tool; chmod +x $prefix/bin/tool
  echo 'export TOOL_DATA=$CONDA_PREFIX/data' > $prefix/etc/conda/activate.d/tool.sh;;
esac
'''


class Venvs(Place):
    @classmethod
    def setUpClass(cls):
        done = subprocess.run(["python3", "-c", "import ensurepip, venv"], capture_output=True)
        if done.returncode != 0:
            raise unittest.SkipTest("python3 cannot make environments: python3-venv is not installed")

    def wheel(self, version):
        name = self.path("flowpkg-%s-py3-none-any.whl" % version)
        info = "flowpkg-%s.dist-info/" % version
        with zipfile.ZipFile(name, "w") as archive:
            archive.writestr("flowpkg.py", "VERSION = %r\n" % version)
            archive.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: flowpkg\nVersion: %s\n" % version)
            archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(info + "RECORD", "flowpkg.py,,\n%sMETADATA,,\n%sWHEEL,,\n%sRECORD,,\n" % (info, info, info))
        return "flowpkg @ file://%s\n" % name

    def script(self, options, command, name="p", tasks=1):
        self.write(name + ".lua", 'local flow = require "flow"\n'
                   'local t = flow.shell("t", { %s, args = { "i" }, command = [[%s # {i}]] })\n'
                   'return flow.pipeline("p", {}, function() local all = {}; for i = 1, %d do all[i] = t(i).stdout end; '
                   'return { out = all[1], all = all } end)\n' % (options, command, tasks))
        return name + ".lua"

    def end_of(self, script, code=0, **env):
        return self.exits(code, self.flow("run", script, "--json", **env)).lines()[-1]

    def environments(self):
        folder = os.path.join(self.state, "environments")
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def finished(self):
        return [name for name in self.environments() if "." not in name]

    PRINT = "python -c 'import flowpkg, sys; print(flowpkg.VERSION, sys.prefix)'; flow_venv=$VIRTUAL_ENV; echo $flow_venv"

    def test_requirements_are_installed_once_and_logged_with_the_run(self):
        self.write("requirements.txt", self.wheel("1.0"))
        end = self.end_of(self.script('venv = "requirements.txt", cpus = 1', self.PRINT, tasks=3))
        self.assertEqual(end["counts"]["succeeded"], 3)
        key, = self.finished()
        prefix = os.path.realpath(os.path.join(self.state, "environments", key)) + "/prefix"
        self.assertEqual(end["result"]["all"], ["1.0 %s\n%s\n" % (prefix, prefix)] * 3)
        logs = self.good("logs", "last").out
        self.assertEqual(logs.count("the environment of `requirements.txt` is"), 1, logs)
        self.assertIn("flowpkg @ file://", logs)
        with open(os.path.dirname(prefix) + "/packages.txt") as packages:
            self.assertIn("flowpkg", packages.read())

    def test_an_environment_is_used_again_by_other_runs_and_tasks(self):
        self.write("requirements.txt", self.wheel("1.0"))
        self.end_of(self.script('venv = "requirements.txt"', "python -c 'import flowpkg'"))
        before = self.environments()
        self.write("again.txt", self.read("requirements.txt"))
        end = self.end_of(self.script('venv = "again.txt", cache = false', "python -c 'import flowpkg'", "q"))
        self.assertEqual((end["status"], self.environments()), ("succeeded", before))

    def test_the_text_of_the_requirements_is_part_of_the_key(self):
        script = self.script('venv = "requirements.txt"', "python -c 'import flowpkg; print(flowpkg.VERSION)'")
        self.write("requirements.txt", self.wheel("1.0"))
        self.assertEqual(self.end_of(script)["result"]["out"], "1.0\n")
        self.assertTrue(self.end_of(script)["tasks"][0]["cached"])
        self.write("requirements.txt", self.wheel("2.0"))
        end = self.end_of(script)
        self.assertEqual((end["result"]["out"], end["tasks"][0]["cached"]), ("2.0\n", False))
        self.assertIn("venv", self.good("why", "last", "t").out)

    def test_several_processes_build_an_environment_once(self):
        self.write("requirements.txt", self.wheel("1.0"))
        end = self.end_of(self.script('venv = "requirements.txt"', "python -c 'import flowpkg'; echo ok", tasks=4))
        self.assertEqual(end["result"]["all"], ["ok\n"] * 4)
        folders = [name for name in self.environments() if name.count(".") == 1 and not name.endswith(".lock")]
        self.assertEqual(len(folders), 1, self.environments())

    def test_a_failed_build_is_an_error_with_the_last_lines_and_leaves_nothing(self):
        self.write("requirements.txt", "nothing @ file://%s\n" % self.path("missing.whl"))
        end = self.end_of(self.script('venv = "requirements.txt"', "true"), code=1)
        error = end["tasks"][0]["error"]
        self.assertIn("cause: user_error", self.good("why", "last", "t").out)
        for words in ("the environment of `requirements.txt` cannot be built", "pip install", "ended with exit code 1",
                      "missing.whl"):
            self.assertIn(words, error)
        self.assertEqual([name for name in self.environments() if not name.endswith(".lock")], [])

    def test_an_interrupted_build_is_built_again(self):
        self.write("requirements.txt", self.wheel("1.0"))
        script = self.script('venv = "requirements.txt"', "python -c 'import flowpkg; print(flowpkg.VERSION)'")
        run = self.start("run", script)
        self.until("the build has begun", lambda: any("." in name for name in self.environments()))
        self.kill(run)
        self.good("resume", "last")
        self.assertEqual(self.show()["result"]["out"], "1.0\n")
        self.assertEqual(len(self.finished()), 1)
        folders = [name for name in self.environments() if not name.endswith(".lock")]
        self.assertEqual(len(folders), 2, folders)

    def test_a_prefix_is_activated_and_keyed_by_its_name(self):
        os.makedirs(self.path("env", "bin"))
        self.write("env/bin/tool", "#!/bin/sh\necho one\n")
        os.chmod(self.path("env/bin/tool"), 0o755)
        script = self.script('venv = "env"', "tool; echo $VIRTUAL_ENV")
        self.assertEqual(self.end_of(script)["result"]["out"], "one\n%s\n" % self.path("env"))
        self.write("env/bin/tool", "#!/bin/sh\necho two\n")
        self.assertTrue(self.end_of(script)["tasks"][0]["cached"])
        self.assertEqual(self.environments(), [])

    def test_what_is_missing_is_exit_2_before_anything_runs(self):
        for options, words in (('venv = "none.txt"', "there is no file `%s`" % self.path("none.txt")),
                               ('venv = "none"', "`%s` is no environment: it has no folder `bin`" % self.path("none")),
                               ('conda = "none.yml"', "there is no file")):
            self.exits(2, self.flow("run", self.script(options, "true")), "p.lua:2: the task `t`", words)
        self.write("requirements.txt", "-r other.txt\n")
        self.exits(2, self.flow("run", self.script('venv = "requirements.txt"', "true")),
                   "`-r other.txt` refers to another file")
        self.write("e.yml", "dependencies: []\n")
        if any(shutil.which(name) for name in ("conda", "mamba", "micromamba")):
            return
        self.exits(2, self.flow("run", self.script('conda = "e.yml"', "true")),
                   "neither conda, mamba nor micromamba was found in PATH")

    def test_conda_is_called_with_the_file_and_a_prefix(self):
        os.mkdir(self.path("bin"))
        self.write("bin/conda", CONDA % {"calls": self.path("calls")})
        os.chmod(self.path("bin/conda"), 0o755)
        self.write("e.yml", "dependencies: [tool]\n")
        env = {"PATH": self.path("bin") + ":" + os.environ["PATH"]}
        end = self.end_of(self.script('conda = "e.yml"', "tool; echo $CONDA_PREFIX $TOOL_DATA"), **env)
        key, = self.finished()
        prefix = os.path.realpath(os.path.join(self.state, "environments", key)) + "/prefix"
        self.assertEqual(end["result"]["out"], "from conda\n%s %s/data\n" % (prefix, prefix))
        self.assertEqual(self.read("calls").splitlines(),
                         ["env create --prefix %s --file %s/e.yml" % (prefix, os.path.dirname(prefix)),
                          "list --prefix %s --explicit" % prefix])
        self.assertIn("https://conda/zlib-1.3.conda", self.good("logs", "last").out)

    def test_gc_removes_the_environments_that_no_kept_run_uses(self):
        self.write("requirements.txt", self.wheel("1.0"))
        script = self.script('venv = "requirements.txt"', "python -c 'import flowpkg'")
        self.end_of(script)
        first, = self.finished()
        self.write("requirements.txt", self.wheel("2.0"))
        self.end_of(script)
        self.good("gc", "--keep", "2")
        self.assertEqual(len(self.finished()), 2)
        self.good("gc", "--keep", "1")
        self.assertEqual(len(self.finished()), 1)
        self.assertNotIn(first, self.finished())
        self.good("gc", "--keep", "0")
        self.assertEqual([name for name in self.environments() if not name.endswith(".lock")], [])

    def test_a_stop_ends_the_build(self):
        self.write("slow", "#!/bin/sh\ncase $2 in *platform*) echo 3.0.0; exit;; esac\ntouch %s\nexec sleep 600\n"
                   % self.path("building"))
        os.mkdir(self.path("bin"))
        os.rename(self.path("slow"), self.path("bin/python3"))
        os.chmod(self.path("bin/python3"), 0o755)
        self.write("requirements.txt", "anything\n")
        run = self.start("run", self.script('venv = "requirements.txt"', "true"), "--grace", "0s",
                         PATH=self.path("bin") + ":" + os.environ["PATH"])
        self.until("the build runs", lambda: os.path.exists(self.path("building")))
        run.send_signal(signal.SIGINT)
        self.exits(3, self.end(run))
        self.assertEqual(json.loads(self.good("show", "last", "--json").out)["status"], "interrupted")


if __name__ == "__main__":
    main()
