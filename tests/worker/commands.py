#!/usr/bin/env python3
"""Commands of shell tasks: what they leave running, how long they may be, and which outputs are theirs.

usage: commands.py --flow BIN [TEST...]
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import OPTIONS, Place, main  # noqa: E402, F401

HEAD = 'local flow = require "flow"\n'


class Commands(Place):
    def script(self, tasks, body):
        self.write("p.lua", HEAD + tasks + '\nreturn flow.pipeline("p", {}, function()\n' + body + "\nend)\n")

    def shell(self, command, options="", call="{}", part=""):
        """A script of the one shell task `t`."""
        self.script('local t = flow.shell("t", { %s command = [[%s]] })' % (options, command),
                    "return t %s%s" % (call, part))

    def result(self, code=0, **env):
        done = self.exits(code, self.flow("run", "p.lua", **env))
        return self.show()["result"] if code == 0 else done.out + done.err

    def error(self, **env):
        self.result(1, **env)
        return self.tasks()["t"]["error"]

    def copied(self, name):
        self.good("get", "last", "-o", "out")
        with open(self.path("out", name), "rb") as file:
            return file.read()

    # ---- why it failed

    def test_a_long_error_is_cut(self):
        self.script('local t = flow.task("t", function() error(("x"):rep(10000000)) end)', "return t()")
        done = self.exits(1, self.flow("run", "p.lua"))
        self.assertLess(len(done.out + done.err), 100000)
        self.assertIn("bytes more)", done.err)
        self.write("p.lua", HEAD + 'error(("x"):rep(10000000))')
        done = self.exits(2, self.flow("run", "p.lua"))
        self.assertLess(len(done.out + done.err), 100000)

    # ---- outputs

    def names(self, outputs, command, call="{}"):
        self.shell(command, "outputs = { o = %s }," % outputs, call, ".o")
        value = self.result()
        return [each["$file"]["name"] for each in value] if isinstance(value, list) else value["$file"]["name"]

    def test_globs_of_outputs(self):
        made = "mkdir -p d/e .h inputs; touch d/f.t d/e/g.t top.t a.x a.y a.z .h/i.t .dot.t inputs/j.t; ln -s d linked"
        self.assertEqual(self.names('"**/*.t"', made), ["g.t", "f.t", "top.t"])  # d/e/g.t d/f.t top.t
        self.assertEqual(self.names('"d/**"', made), ["g.t", "f.t"])
        self.assertEqual(self.names('"*.{z,x}"', made), ["a.x", "a.z"])
        self.assertEqual(self.names('"{top,d/{f,none}}.t"', made), ["f.t", "top.t"])
        self.assertEqual(self.names('".*.t"', made), [".dot.t"])
        self.assertEqual(self.names('"d/"', made), "d")

    def test_a_name_with_wildcards_may_be_meant_as_it_is(self):
        self.assertEqual(self.names('"a[1].txt"', "touch 'a[1].txt' a1.txt"), "a[1].txt")
        self.assertEqual(self.names('"a[1].txt"', "touch a1.txt"), ["a1.txt"])
        self.assertEqual(self.names('{ "a[1].txt", glob = false }', "touch {outputs.o} a1.txt"), "a[1].txt")
        self.shell("touch a1.txt", 'outputs = { o = { "a[1].txt", glob = false } },')
        self.assertIn("made no output `o`: nothing matches `a[1].txt`", self.error())
        self.shell("true; true", 'outputs = { o = { "a", glub = false } },')
        self.assertIn("unknown entry `glub`", self.result(2))

    def test_arguments_name_outputs(self):
        self.write("in put.csv", "data\n")
        self.script('local t = flow.shell("t", { args = { "sample", "file" }, '
                    'outputs = { o = "{sample}/{sample}.txt", logs = "{sample}.*.log", kept = "{{sample}}", '
                    'named = "{file}.gz" },\n'
                    "command = [[mkdir {sample}; echo {sample} > {outputs.o}; touch {sample}.1.log 's*.2.log' {outputs.kept}; "
                    "gzip < {file} > {outputs.named}]] })",
                    'local h = t("s*", flow.file("in put.csv")) return { h.o, h.logs, h.kept, h.named }')
        one, logs, kept, named = self.result()
        self.assertEqual([one["$file"]["name"], [log["$file"]["name"] for log in logs], kept["$file"]["name"],
                          named["$file"]["name"]], ["s*.txt", ["s*.1.log", "s*.2.log"], "{sample}", "in put.csv.gz"])

    def test_wrong_names_of_outputs_are_told_before_anything_runs(self):
        for outputs, call, words in (
                ('{ o = "{sampel}.txt" }', '{ sample = "a" }', "did you mean `{sample}`?"),
                ('{ o = "{sample}.txt" }', '{ sample = { "a" } }', "not a string, number, boolean or file"),
                ('{ o = "{sample}.txt" }', '{ sample = "../a" }', "it has the step `..`"),
                ('{ o = "{sample}", p = "a" }', '{ sample = "a" }', "have one path, `a`"),
                ('{ o = "{sample}" }', '{ sample = "" }', "it names no file")):
            with self.subTest(outputs):
                self.shell("echo {sample}; true", "outputs = %s," % outputs, call)
                self.assertIn(words, self.result(2))
        self.assertEqual(self.runs(), [])


if __name__ == "__main__":
    main()
