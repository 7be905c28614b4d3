#!/usr/bin/env python3
"""Folders, names and links as values, inputs that are touched or changed, and folders without write permission.

usage: folders.py --flow BIN [TEST...]
"""
import hashlib
import json
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, OPTIONS, Place, main  # noqa: E402

HEAD = 'local flow = require "flow"\n'
LARGE = 100_000  # too large for the database
USER = 1234

LIST = r'''
local list = flow.shell("list", { args = { "folder" },
  command = [[cd {folder}; for f in $(find -L . -type f | sort); do echo "$f $(cat "$f")"; done]] })
'''


def can_mount():
    """A bind mount in a separate namespace."""
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL).returncode == 0


class Folders(Place):
    def script(self, body, params=""):
        self.write("pipeline.lua", HEAD + body.replace("PIPELINE", 'flow.pipeline("folders", { %s }, function(p)' % params))

    def run_for(self, body, *words, params=""):
        self.script(body, params)
        self.good("run", ".", *words)
        return self.show()["result"]

    def fails(self, options, command, *words):
        """Returns the one task's error, after one attempt."""
        self.script('local t = flow.shell("t", { %s command = [[%s]] })\nreturn PIPELINE return t {} end)\n' % (options, command))
        self.exits(1, self.flow("run", "."))
        task = self.tasks()["t"]
        for word in words:
            self.assertIn(word, task["error"])
        self.assertEqual(task["attempts"], 1)
        return task

    # ---- links

    def test_folders_behind_links_are_part_of_an_input(self):
        for folder in ("in/lib", "other/below"):
            os.makedirs(self.path(folder))
        self.write("in/lib/a", "A")
        self.write("other/b", "B")
        self.write("other/below/c", "C")
        os.symlink("lib", self.path("in", "lib64"))
        os.symlink(self.path("other"), self.path("in", "other"))
        body, params = LIST + "return PIPELINE return list(p.folder).stdout end)\n", "folder = flow.param.path {}"
        listed = self.run_for(body, "--param", "folder=in", params=params)
        self.assertEqual(listed, "./lib/a A\n./lib64/a A\n./other/b B\n./other/below/c C\n")
        self.write("other/below/c", "changed")
        self.assertIn("below/c changed", self.run_for(body, "--param", "folder=in", params=params))
        for target in ("../../in", "..", ".", "/"):
            os.symlink(target, self.path("in", "lib", "loop"))
            self.exits(2, self.flow("run", ".", "--param", "folder=in"),
                       "`lib/loop` in the folder `%s` is a symbolic link to a folder that contains it" % self.path("in"))
            os.remove(self.path("in", "lib", "loop"))
        os.symlink("../in/lib", self.path("other", "round"))
        os.symlink("../../other", self.path("in", "lib", "round"))
        self.exits(2, self.flow("run", ".", "--param", "folder=in"), "a symbolic link to a folder that contains it")

    def test_folders_behind_links_are_part_of_an_output(self):
        result = self.run_for(LIST + r'''
local t = flow.shell("t", { outputs = { d = "d" }, command = [[
  mkdir -p d/lib e/deep; echo A > d/lib/a; echo E > e/deep/x; ln -s lib d/lib64; ln -s ../e d/e ]] })
return PIPELINE return list(t {}.d).stdout end)
''')
        self.assertEqual(result, "./e/deep/x E\n./lib/a A\n./lib64/a A\n")
        self.fails('outputs = { d = "d" },', "mkdir d; echo x > d/x; ln -s . d/me",
                   "`me` in the folder", "is a symbolic link to a folder that contains it")

    def test_a_broken_link_as_an_output_is_reported_as_one(self):
        for output in ("l", "l*"):
            task = self.fails('outputs = { o = "%s" },' % output, "ln -s nowhere l; true",
                              "is a symbolic link to `nowhere`, which does not exist")
            self.assertNotIn("there is", task["error"])
            self.fails('outputs = { o = "%s" },' % output, "ln -s l l; true", "is a symbolic link to `l`, which leads back to it")
        self.fails('outputs = { o = "d" },', "mkdir d; ln -s nowhere d/x", "`x` in the folder",
                   "is a symbolic link to `nowhere`, which does not exist")
        self.script('local t = flow.task("t", function(ctx) os.execute("ln -s nowhere " .. ctx.dir .. "/l"); return ctx:file("l") end)\n'
                    "return PIPELINE return t() end)\n")
        self.exits(1, self.flow("run", "."), 'ctx:file("l"): it is a symbolic link to `nowhere`, which does not exist')

    # ---- states

    def test_a_state_directory_in_a_folder_is_skipped_and_named(self):
        os.mkdir(self.path("project"))
        self.write("project/a", "A")
        self.write("project/hello.lua", HEAD + 'return flow.pipeline("h", {}, function() return 1 end)\n')
        os.mkdir(self.path("project", "below"))
        for state in ("project/.flow", "project/below/other"):
            self.good("run", "project/hello.lua", "--state", self.path(state))
        body = LIST + "return PIPELINE return list(p.folder).stdout end)\n"
        self.script(body, "folder = flow.param.path {}")
        done = self.good("run", ".", "--param", "folder=project", "--state", self.path("project", ".flow"))
        for state in (".flow", "below/other"):
            self.assertIn("`%s` in the folder `%s` is a state of flow and is left out" % (state, self.path("project")), done.err)
        shown = json.loads(self.good("get", "last", "--state", self.path("project", ".flow")).out)
        self.assertIn("./a A\n./hello.lua", shown)
        self.assertNotIn("db", shown)
        self.exits(2, self.flow("run", ".", "--param", "folder=" + self.path("project", ".flow")), "is the state of a flow")
        self.write("copy.lua", HEAD + r'''
local t = flow.shell("t", { args = { "from" }, outputs = { d = "d" }, command = [[cp -r {from} d; echo 1 > d/more]] })
return flow.pipeline("copy", { from = flow.param.string {} }, function(p) return t(p.from).d end)
''')
        self.good("run", "copy.lua", "--param", "from=" + self.path("project", "below"))
        self.assertEqual(self.show()["result"]["$file"]["size"], 2)
        self.assertIn("`other` in the folder", self.good("logs", "last", "t").out)

    # ---- names

    def test_two_folders_never_have_one_digest(self):
        two = hashlib.sha256(b"two").hexdigest()
        os.makedirs(self.path("a", "x"))
        os.makedirs(self.path("b", "x"))
        self.write("a/x/a\n%s 0 b" % two, "one")
        self.write("b/x/a", "one")
        self.write("b/x/b", "two")
        result = self.run_for(r'''
local show = flow.shell("show", { args = { "p", "q" }, command = [[ls {p} | wc -l; cat {q}/a {q}/b]] })
return PIPELINE return { show(p.p, p.q).stdout, p.p, p.q } end)
''', "--param", "p=a/x", "--param", "q=b/x", params="p = flow.param.path {}, q = flow.param.path {}")
        self.assertEqual(result[0], "2\nonetwo")  # one name has two lines
        self.assertNotEqual(result[1]["$file"]["digest"], result[2]["$file"]["digest"])
        one = hashlib.sha256(b"one").hexdigest()
        plain = hashlib.sha256(("%s 0 a\n%s 0 b\n" % (one, two)).encode()).hexdigest()
        self.assertEqual(result[2]["$file"]["digest"], plain)  # as in states of earlier versions

    def test_ctx_file_accepts_every_name(self):
        for name in (r"a\b", "./x", "d//x", "d/"):
            with self.subTest(name):
                result = self.run_for(r'''
local t = flow.task("t", function(ctx, n)
  flow.fs.mkdir(ctx.dir .. "/d")
  if n ~= "d/" then flow.fs.write(ctx.dir .. "/" .. n, "x") end
  return ctx:file(n)
end)
return PIPELINE return t(p.n) end)
''', "--param", "n=" + name, params="n = flow.param.string {}")
                self.assertEqual(result["$file"]["name"], os.path.basename(os.path.normpath(name)))
        self.exits(1, self.flow("run", ".", "--param", "n=../x"))

    def test_an_output_with_a_trailing_slash_keeps_its_name(self):
        result = self.run_for(r'''
local t = flow.shell("t", { outputs = { d = "results/", all = "*/" }, command = [[mkdir results other; echo 1 > results/f; echo 2 > other/g]] })
local u = flow.shell("u", { args = { "d" }, command = [[basename {d}]] })
return PIPELINE local x = t {}; return { d = x.d, all = x.all, next = u(x.d).stdout } end)
''', "--out", self.path("out"))
        self.assertEqual(result["d"]["$file"]["name"], "results")
        self.assertEqual([each["$file"]["name"] for each in result["all"]], ["other", "results"])
        self.assertEqual(result["next"], "results\n")
        self.assertEqual(sorted(os.listdir(self.path("out"))), ["other", "result.json", "results", "results-2"])

    def test_the_longest_names_can_be_written(self):
        name = "n" * 255
        body = r'''
local save = {
  npy = function(path) flow.data.write_npy(path, flow.ones(3)) end,
  st = function(path) flow.safetensors.save(path, { a = flow.ones(3) }) end,
}
local t = flow.task("t", function(ctx, how, n)
  local path = ctx.dir .. "/" .. n
  save[how](path)
  save[how](path)  -- one that is there is replaced
  return ctx:file(n)
end)
return PIPELINE return { t("npy", p.n), t("st", p.n) } end)
'''
        result = self.run_for(body, "--param", "n=" + name, params="n = flow.param.string {}")
        self.assertEqual([each["$file"]["name"] for each in result], [name, name])

    def test_all_names_in_ctx_dir_belong_to_the_task(self):
        self.write("in.txt", "input")
        os.mkdir(self.path("folder"))
        self.write("folder/x", "member")
        result = self.run_for(r'''
local t = flow.task("t", function(ctx, path, folder)
  assert(#flow.fs.list(ctx.dir) <= 1)
  flow.fs.write(ctx.dir .. "/inputs", flow.fs.read(path))
  ctx:step("s", function() return ctx:file("inputs") end)
  return { one = ctx:file("inputs"), all = ctx:file("."), same = path, member = ctx:file(folder .. "/x") }
end)
local read = flow.task("read", function(ctx, all, member)
  return { flow.fs.list(all), flow.fs.read(member) }
end)
return PIPELINE local made = t(p.file, p.folder); return { made, read(made.all, made.member) } end)
''', "--param", "file=in.txt", "--param", "folder=folder", params="file = flow.param.path {}, folder = flow.param.path {}")
        self.assertEqual(result[1], [["inputs"], "member"])
        self.assertEqual((result[0]["one"]["$file"]["name"], result[0]["same"]["$file"]["name"]), ("inputs", "in.txt"))

    def test_ctx_file_of_the_folder_is_the_same_if_ctx_dir_was_not_read(self):
        self.write("in.txt", "input")
        result = self.run_for(r'''
local read = flow.task("read", function(ctx, path) return ctx.dir and ctx:file(".") end)
local plain = flow.task("plain", function(ctx) return ctx:file(".") end)
local given = flow.task("given", function(ctx, path) return ctx:file(".") end)
local made = flow.task("made", function(ctx) return not pcall(ctx.file, ctx, "none") and ctx:file(".") end)
return PIPELINE return { read(p.f), plain(), given(p.f), made() } end)
''', "--param", "f=in.txt", params="f = flow.param.path {}")
        folders = [dict(each["$file"], name="") for each in result]
        self.assertEqual(folders, [folders[0]] * 4)

    def test_a_glob_of_hidden_names_matches_no_staged_input(self):
        self.write("in.txt", "input")
        result = self.run_for(r'''
local t = flow.shell("t", { args = { "f" }, outputs = { all = ".*", rest = "*" }, command = [[cp {f} .own; cp {f} own]] })
return PIPELINE return t(p.f) end)
''', "--param", "f=in.txt", params="f = flow.param.path {}")
        self.assertEqual([each["$file"]["name"] for each in result["all"] + result["rest"]], [".own", "own"])

    def test_a_script_behind_a_link_finds_the_files_next_to_it(self):
        os.makedirs(self.path("code", "data"))
        self.write("code/helper.lua", "return { n = 7 }\n")
        self.write("code/data/in.txt", "four")
        self.write("code/real.lua", HEAD + r'''
local helper = require "helper"
local t = flow.task("t", function(ctx, path) return helper.n + #flow.fs.read(path) end)
return flow.pipeline("linked", {}, function() return t(flow.file("data/in.txt")) end)
''')
        os.symlink("code/real.lua", self.path("job.lua"))
        os.symlink("code", self.path("tree"))
        for script in ("job.lua", "tree/real.lua"):
            self.good("run", script, "--fresh")
            self.assertEqual(self.show()["result"], 11)

    # ---- inputs that change, and inputs that only seem to

    def test_a_blob_that_is_written_again_during_a_read_is_not_a_change(self):
        self.write("pipeline.lua", HOLD + r'''
local make = flow.shell("make", { outputs = { o = "o", d = "d" }, command = [[seq 1 40000 > o; mkdir d; seq 1 50000 > d/x]] })
local same = flow.shell("same", { args = { "f", "d", "gate", "seen" }, outputs = { o = "o", d = "d" },
  command = [[while ! grep -q lua {seen} || ! grep -q shell {seen}; do sleep 0.05; done; cat {f} > o; cp -rL {d} d; touch {gate}]] })
local read = flow.shell("read", { args = { "f", "d", "gate", "seen" },
  command = [[cat {f} {d}/x | wc -c; echo shell >> {seen}; while [ ! -e {gate} ]; do sleep 0.05; done; cat {f} {d}/x | wc -c]] })
local lua = flow.task("lua", function(ctx, f, gate, seen)
  local size = #flow.fs.read(f)
  flow.fs.append(seen, "lua\n")
  while not flow.fs.exists(gate) do os.execute("sleep 0.05") end
  return #flow.fs.read(f) == size
end)
return flow.pipeline("same", { gate = flow.param.string {}, seen = flow.param.string {} }, function(p)
  local made = make {}
  local again = same(made.o, made.d, p.gate .. "2", p.seen)
  return { read(made.o, made.d, p.gate, p.seen).stdout, lua(made.o, p.gate, p.seen), hold(p.gate .. "2", "x"):after(again).stdout }
end)
''')
        self.write("seen", "")
        run = self.start("run", ".", "--jobs", "4", "--param", "gate=" + self.path("gate"), "--param", "seen=" + self.path("seen"))
        self.until("the content was made again", lambda: os.path.exists(self.path("gate2.started")))
        self.open("gate")
        self.exits(0, self.end(run))
        result = self.show()["result"]
        self.assertEqual((result[0], result[1]), ("%d\n" % (228894 + 288894) * 2, True))
        self.assertEqual({task["attempts"] for task in self.tasks().values()}, {1})

    def test_an_input_that_another_run_stores_again_is_not_a_change(self):
        self.write("in.txt", "x" * LARGE)
        self.write("reads.lua", HOLD + r'''
local read = flow.shell("read", { args = { "f", "gate" }, cache = false,
  command = [[wc -c < {f}; touch {gate}.started; while [ ! -e {gate} ]; do sleep 0.05; done]] })
return flow.pipeline("reads", { f = flow.param.path {}, gate = flow.param.string {} }, function(p) return read(p.f, p.gate).stdout end)
''')
        words = ("run", "reads.lua", "--param", "f=in.txt", "--param")
        run = self.start(*words, "gate=" + self.path("gate"))
        self.until("the reader runs", lambda: os.path.exists(self.path("gate.started")))
        os.utime(self.path("in.txt"), (1e9, 1e9))
        self.open("other")
        self.good(*words, "gate=" + self.path("other"))
        self.open("gate")
        self.exits(0, self.end(run))

    def test_a_change_that_keeps_size_and_time_fails_the_attempt(self):
        """Of a large file that is read in place, and of a blob in the state."""
        with open(self.path("large.bin"), "wb") as file:
            file.write(b"version1")
            file.truncate(65 << 20)
        self.write("middle.bin", "x" * LARGE)
        self.write("reads.lua", HOLD + r'''
local read = flow.shell("read", { args = { "f", "gate" },
  command = [[readlink -f {f} > {gate}.path; touch {gate}.started; while [ ! -e {gate} ]; do sleep 0.05; done; head -c 8 {f}]] })
return flow.pipeline("reads", { f = flow.param.path {}, gate = flow.param.string {} }, function(p) return read(p.f, p.gate).stdout end)
''')
        for name in ("large.bin", "middle.bin"):
            with self.subTest(name):
                words = ("run", "reads.lua", "--param", "f=" + name, "--param", "gate=" + self.path("gate"))
                run = self.start(*words)
                self.until("the reader runs", lambda: os.path.exists(self.path("gate.started")))
                path = self.read("gate.path").strip()
                before = os.stat(path)
                os.chmod(path, 0o600)
                with open(path, "r+b") as file:
                    first = file.read(8)
                    file.seek(0)
                    file.write(b"version2")
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
                self.assertEqual(os.stat(path).st_mtime_ns, before.st_mtime_ns)
                self.open("gate")
                self.exits(1, self.end(run), "input changed")
                if os.path.exists(path):  # the damaged blob was removed from the state
                    with open(path, "r+b") as file:
                        file.write(first)
                os.remove(self.path("gate.started"))
                self.good(*words)
                self.assertEqual(self.show()["result"], first.decode())
                self.assertFalse(self.tasks()["read"]["cached"])
                for each in ("gate", "gate.started"):
                    os.remove(self.path(each))

    # ---- folders without write permission, as a user to whom permissions apply

    def as_user(self, *words):
        ids = {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}
        process = subprocess.Popen([OPTIONS.flow, *words], cwd=self.folder, env=dict(self.env, HOME=self.folder),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **ids)
        self.processes.append(process)
        return self.end(process)

    def give_to_user(self):
        if os.geteuid() != 0:
            return
        for folder, folders, files in os.walk(self.folder):
            for path in [folder] + [os.path.join(folder, name) for name in files]:
                os.lchown(path, USER, USER)
        looks = subprocess.run([OPTIONS.flow, "--version"], user=USER, group=USER, extra_groups=[], capture_output=True) \
            if self.may_enter(OPTIONS.flow) else None
        if looks is None or looks.returncode != 0:
            raise unittest.SkipTest("another user cannot run %s" % OPTIONS.flow)

    @staticmethod
    def may_enter(path):
        while path != "/":
            if not os.stat(path).st_mode & 0o001:
                return False
            path = os.path.dirname(path)
        return True

    @unittest.skipUnless(can_mount(), "a mount needs root and a mount namespace")
    def test_a_mount_in_a_scratch_folder_is_kept(self):
        os.mkdir(self.path("data"))
        self.write("data/kept", "precious")
        mount = "mkdir mnt; mount --bind %s mnt" % self.path("data")
        self.script(r"""
local shell = flow.shell("shell", { outputs = { n = "n", kept = "mnt/kept" }, command = [[%s; ls mnt > n]] })
local lua = flow.task("lua", function(ctx) return (os.execute("cd " .. ctx.dir .. " && { %s; }")) end)
return PIPELINE return { shell(), lua() } end)
""" % (mount, mount))
        done = self.end(self.start("run", ".", "--json", before=("unshare", "--mount")))
        self.assertEqual(done.code, 0, done)
        self.assertEqual(self.read("data/kept"), "precious")
        for task in ("shell", "lua"):
            self.exits(0, self.flow("logs", "last", task), "a file system is mounted at", "umount")

    def test_folders_without_write_permission_are_stored_and_removed(self):
        self.write("outside", "kept")
        os.mkdir(self.path("closed"))
        os.chmod(self.path("closed"), 0o555)
        self.script(r'''
local t = {
  file = flow.shell("file", { outputs = { o = "d/f" }, command = [[mkdir -p d; head -c 100000 /dev/zero > d/f; chmod a-w d]] }),
  folder = flow.shell("folder", { outputs = { d = "d" }, command = [[mkdir -p d/sub; head -c 100000 /dev/zero > d/sub/f; echo 1 > d/g; chmod -R a-w d]] }),
  rest = flow.shell("rest", { outputs = { o = "o" }, command = [[mkdir -p c/m c/n; echo 1 > c/m/f; ln -s ]] .. p_closed .. [[ c/m/away; chmod a-w c/m; chmod 000 c/n; chmod a-w c; echo ok > o]] }),
  lua = flow.task("lua", function(ctx) os.execute("cd " .. ctx.dir .. "; mkdir -p c/m; echo 1 > c/m/f; chmod -R a-w c"); return 1 end),
  failed = flow.shell("failed", { outputs = { o = "o" }, command = [[mkdir -p c/m; echo 1 > c/m/f; chmod -R a-w c; exit 1]] }),
}
return PIPELINE return t[p.which] {} end)
'''.replace("p_closed", '"%s"' % self.path("closed")), "which = flow.param.string {}")
        self.write("pipeline.lua", self.read("pipeline.lua").replace("t[p.which] {}", 'p.which == "lua" and t.lua() or t[p.which] {}'))
        self.give_to_user()

        def left():
            scratch = self.path(".flow", "scratch")
            return sorted(name for run in os.listdir(scratch) if run not in ("slots", "id") for name in os.listdir(os.path.join(scratch, run)))

        for which in ("file", "folder", "rest", "lua"):
            with self.subTest(which):
                self.exits(0, self.as_user("run", ".", "--param", "which=" + which))
                shown = json.loads(self.exits(0, self.as_user("show", "last", "--json")).out)
                self.assertEqual([task["attempts"] for task in shown["tasks"]], [1])
                self.assertEqual(left(), [])
        self.exits(1, self.as_user("run", ".", "--param", "which=failed"))
        self.assertEqual(len(left()), 1)
        self.exits(0, self.as_user("gc", "--keep", "0"))
        self.assertEqual(left(), [])
        self.assertEqual(os.stat(self.path("closed")).st_mode & 0o777, 0o555)
        shutil.rmtree(self.path(".flow"))


if __name__ == "__main__":
    main()
