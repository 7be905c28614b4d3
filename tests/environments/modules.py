#!/usr/bin/env python3
"""What runs before a command: `before`, and modules of a module system that the test writes, or of the machine's own.

usage: modules.py --flow BIN [TEST...]
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

# `module` as Lmod and environment-modules define it: modulefiles are files of shell text in MODULEPATH.
INIT = r'''
module() {
  echo "$@" >> "$MODULE_CALLS"
  case $1 in load) ;; *) return 1;; esac
  if [ ! -e "$MODULEPATH/$2" ]; then
    echo "ERROR: Unable to locate a modulefile for '$2'" >&2
    return 1
  fi
  . "$MODULEPATH/$2"
}
'''
USUAL = ("/usr/share/modules/init/bash", "/usr/share/lmod/lmod/init/bash")


class Modules(Place):
    def script(self, options, command, name="p"):
        self.write(name + ".lua", 'local flow = require "flow"\n'
                   'local t = flow.shell("t", { %s, command = [[%s]] })\n'
                   'return flow.pipeline("p", {}, function() return { out = t().stdout } end)\n' % (options, command))
        return name + ".lua"

    def result(self, options, command, **env):
        return self.good_result("run", self.script(options, command), "--json", **env)

    def good_result(self, *words, **env):
        return self.good(*words, **env).lines()[-1]

    def failure(self, options, command, **env):
        done = self.flow("run", self.script(options, command), "--json", **env)
        return self.exits(1, done).lines()[-1]["tasks"][0]["error"]

    def module_system(self, **modules):
        os.makedirs(self.path("system", "init"))
        self.write("system/init/bash", INIT)
        self.write("system/init/sh", INIT)
        os.makedirs(self.path("files", "gcc"))
        for name, text in modules.items():
            self.write("files/" + name, text)
        self.write("files/gcc/12.3", "export CC=gcc-12\n")
        return {"MODULESHOME": self.path("system"), "MODULEPATH": self.path("files"),
                "MODULE_CALLS": self.path("calls"), "LMOD_PKG": ""}

    def test_a_task_may_have_a_module_path_of_its_own(self):
        env = self.module_system()
        path = env.pop("MODULEPATH")
        options = 'modules = { "gcc/12.3" }, env = { MODULEPATH = "%s" }' % path
        self.assertEqual(self.result(options, "echo $CC", **dict(env, MODULEPATH="/nowhere"))["result"]["out"], "gcc-12\n")

    def test_before_runs_in_the_shell_of_the_command(self):
        end = self.result('before = "name=world; greet() { echo hello $name; }"', "greet")
        self.assertEqual(end["result"]["out"], "hello world\n")

    def test_before_reads_files_of_the_machine_and_may_be_of_sh(self):
        self.write("setup.sh", "export FROM_SETUP=yes\n")
        options = 'shell = { "sh", "-eu", "-c" }, before = "set -o nounset; . %s"' % self.path("setup.sh")
        self.assertEqual(self.result(options, "echo $FROM_SETUP")["result"]["out"], "yes\n")

    def test_a_failing_before_is_named(self):
        error = self.failure('before = "source /no/such/file"', "echo never")
        self.assertIn("p.lua:2: `t` did not begin: `before` ended with exit code 1", error)
        why = self.good("why", "last", "t").out
        self.assertIn("cause: exit_code", why)
        self.assertIn("/no/such/file: No such file", why)

    def test_a_before_that_exits_is_no_success(self):
        error = self.failure('before = "exit 0"', "echo never")
        self.assertIn("`before` ended with exit code 0, before the command could run", error)

    def test_a_failing_command_after_before_is_named_as_always(self):
        error = self.failure('before = "true"', "false")
        self.assertIn("`t` ended with exit code 1", error)

    def test_before_is_part_of_the_key(self):
        self.result('before = "a=1"', "echo $a")
        end = self.result('before = "a=2"', "echo $a")
        self.assertEqual((end["result"]["out"], end["tasks"][0]["cached"]), ("2\n", False))
        self.assertIn("before", self.good("why", "last", "t").out)
        again = self.result('before = "a=2"', "echo $a")
        self.assertTrue(again["tasks"][0]["cached"])

    def test_before_needs_a_shell_that_understands_it(self):
        script = self.script('before = "true", shell = { "python3", "-c" }', "print(1)")
        self.exits(2, self.flow("run", script), "has `before`, which its shell `python3` does not understand")

    def test_a_lua_task_has_no_environment(self):
        self.write("l.lua", 'local flow = require "flow"\n'
                   'local t = flow.task("t", { before = "true" }, function() end)\n'
                   'return flow.pipeline("p", {}, function() return t() end)\n')
        self.exits(2, self.flow("run", "l.lua"), "the option `before` belongs to flow.shell")

    def test_modules_are_loaded_once_to_check_and_once_to_run(self):
        env = self.module_system(cuda="export CUDA=12; [ $CC = gcc-12 ]\n")
        end = self.result('modules = { "gcc/12.3", "cuda" }', "echo $CC $CUDA", **env)
        self.assertEqual(end["result"]["out"], "gcc-12 12\n")
        self.assertEqual(self.read("calls").splitlines(), ["load gcc/12.3", "load cuda"] * 2)

    def test_modules_are_part_of_the_key_by_name(self):
        env = self.module_system(a="export V=1\n", b="export V=2\n")
        self.assertEqual(self.result('modules = { "a" }', "echo $V", **env)["result"]["out"], "1\n")
        self.write("files/a", "export V=3\n")
        self.assertEqual(self.result('modules = { "a" }', "echo $V", **env)["result"]["out"], "1\n")
        self.assertEqual(self.result('modules = { "b" }', "echo $V", **env)["result"]["out"], "2\n")
        self.assertIn("modules", self.good("why", "last", "t").out)

    def test_a_missing_module_is_exit_2_before_anything_runs(self):
        env = self.module_system()
        done = self.flow("run", self.script('modules = { "gcc/12.3", "nope/1" }', "true"), **env)
        self.exits(2, done, "p.lua:2: the task `t`: the module `nope/1` cannot be loaded",
                   "Unable to locate a modulefile for 'nope/1'")
        self.assertEqual(self.good("ls", "--json").out.strip(), "")

    def test_a_missing_module_system_is_exit_2(self):
        if any(os.path.exists(path) for path in USUAL):
            self.skipTest("this machine has a module system")
        done = self.flow("run", self.script('modules = { "gcc/12.3" }', "true"), MODULESHOME="", LMOD_PKG="")
        self.exits(2, done, "there is no module system on this machine", "environment-modules")

    def test_resume_checks_modules_again(self):
        env = self.module_system(a="export V=1\n")
        script = self.script('modules = { "a" }', "echo $V; test -e %s" % self.path("go"))
        self.exits(1, self.flow("run", script, **env))
        os.rename(self.path("files/a"), self.path("files/b"))
        self.exits(2, self.flow("resume", "last", **env), "the module `a` cannot be loaded")
        os.rename(self.path("files/b"), self.path("files/a"))
        self.open("go")
        self.good("resume", "last", **env)

    def test_a_module_that_disappears_fails_the_attempt_as_environment(self):
        env = self.module_system(a="[ ! -e %s ] || return 1\nexport V=1\n" % self.path("gone"))
        self.write("q.lua", 'local flow = require "flow"\n'
                   'local first = flow.shell("first", { command = [[touch %s]] })\n'
                   'local t = flow.shell("t", { modules = { "a" }, retries = { infra = 0 }, command = [[echo $V]] })\n'
                   'return flow.pipeline("p", {}, function() local f = first(); return t():after(f) end)\n'
                   % self.path("gone"))
        end = self.exits(1, self.flow("run", "q.lua", "--json", **env)).lines()[-1]
        error = [task["error"] for task in end["tasks"] if task["name"] == "t"][0]
        self.assertIn("`t` did not begin: the module `a` ended with exit code 1", error)
        self.assertIn("cause: environment", self.good("why", "last", "t").out)

    def test_the_module_system_of_this_machine_is_found(self):
        if not any(os.path.exists(path) for path in USUAL):
            self.skipTest("Lmod and environment-modules are not installed")
        os.makedirs(self.path("modulefiles", "tool"))
        self.write("modulefiles/tool/1.0", "#%Module1.0\nsetenv TOOL_VERSION 1.0\n")
        env = {"MODULEPATH": self.path("modulefiles"), "MODULESHOME": "", "LMOD_PKG": ""}
        end = self.result('modules = { "tool/1.0" }', "echo $TOOL_VERSION", **env)
        self.assertEqual(end["result"]["out"], "1.0\n")
        done = self.flow("run", self.script('modules = { "tool/2.0" }', "true"), **env)
        self.exits(2, done, "the module `tool/2.0` cannot be loaded")


if __name__ == "__main__":
    main()
