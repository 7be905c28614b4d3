#!/usr/bin/env python3
"""Files outside of the state stay as they are: a run reads them through links and never moves, removes or changes them.

usage: outside.py --flow BIN [TEST...]
"""
import hashlib
import os
import shutil
import stat
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import OPTIONS, Place, main  # noqa: E402

HEAD = 'local flow = require "flow"\n'
LARGE = 300_000  # too large for the database
EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples")


def content_of(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def facts_of(path):
    """All properties that a change would affect: type, mode, owner, inode, link count, times,
    content."""
    info = os.lstat(path)
    facts = [info.st_mode, info.st_uid, info.st_gid, info.st_ino, info.st_nlink, info.st_mtime_ns, info.st_ctime_ns]
    if stat.S_ISLNK(info.st_mode):
        facts.append(os.readlink(path))
    elif stat.S_ISREG(info.st_mode):
        facts.append(content_of(path))
    return facts


class Outside(Place):
    def setUp(self):
        super().setUp()
        self.home = self.path("home")
        os.makedirs(self.path("home", "below"))
        for name, size in (("big.bin", LARGE), ("small.txt", 5), ("below/deep.bin", LARGE + 1), ("tool", LARGE + 2)):
            self.write("home/" + name, name[0] * size)
        os.chmod(self.path("home", "tool"), 0o755)
        os.symlink("below", self.path("home", "linked"))
        os.symlink("big.bin", self.path("home", "alias"))

    def world(self):
        """facts_of() each path below the home folder."""
        world = {".": facts_of(self.home)}
        for folder, folders, files in os.walk(self.home):
            for name in folders + files:
                path = os.path.join(folder, name)
                world[os.path.relpath(path, self.home)] = facts_of(path)
        return world

    def keeps_the_world(self, act):
        before = self.world()
        result = act()
        self.assertEqual(self.world(), before)
        return result

    def run_body(self, body, *words, params=""):
        self.write("pipeline.lua", HEAD + body.replace("PIPELINE", 'flow.pipeline("outside", { %s }, function(p)' % params))
        self.good("run", ".", *words)
        return self.show()["result"]

    def test_an_output_behind_a_link_is_copied(self):
        cases = {
            'o = "d/big.bin"': "ln -s %s d",
            'o = "d/*.bin"': "ln -s %s d",
            'o = "d"': "ln -s %s d",
            'o = "d/"': "ln -s %s d",
            'o = "e"': "mkdir e; ln -s %s e/d",
            'o = "./e//d/big.bin"': "mkdir -p e; ln -s %s e/d",
            'o = "big.bin"': "ln -s %s/big.bin big.bin",
            'o = "hard.bin"': "ln %s/big.bin hard.bin",
            'a = "d/big.bin", b = "d"': "ln -s %s d",
        }
        for outputs, command in cases.items():
            with self.subTest(outputs):
                if command.startswith("ln %s"):  # a second name changes the link count
                    os.link(self.path("home", "big.bin"), self.path("second"))
                    command = "ln -s %s/../second hard.bin"
                body = 'local t = flow.shell("t", { outputs = { %s }, command = [[%s; true]] })\nreturn PIPELINE return t {} end)\n'
                out = self.path("out")
                result = self.keeps_the_world(lambda: self.run_body(
                    body % (outputs, command % self.home), "--fresh", "--out", out))
                self.assertTrue(result)
                self.assertTrue(any("big.bin" in name or "hard.bin" in name for _, _, names in os.walk(out) for name in names))
                for folder, _, names in os.walk(out):
                    for name in names:
                        if name.endswith(".bin"):
                            with open(os.path.join(folder, name)) as file:
                                self.assertEqual(set(file.read()), {"b"})
                shutil.rmtree(out)
        self.keeps_the_world(lambda: self.good("gc", "--keep", "0"))

    def test_a_users_file_that_a_link_also_names_is_read_through_both(self):
        result = self.run_body(r'''
local t = flow.shell("t", { outputs = { all = "*.bin", tree = "tree" }, command = [[
  head -c 300000 /dev/zero > a.bin; ln -s a.bin z.bin; ln -s tree/x b.bin
  mkdir tree tree/in; head -c 400000 /dev/zero > tree/x; ln -s ../x tree/in/y; ln -s in tree/out ]] })
return PIPELINE return t {} end)
''')
        self.assertEqual([file["$file"]["size"] for file in result["all"]], [300000, 400000, 300000])
        self.good("get", "last", "tree", "-o", "out")
        names = sorted(os.path.relpath(os.path.join(folder, name), self.path("out", "tree"))
                       for folder, _, names in os.walk(self.path("out", "tree")) for name in names)
        self.assertEqual(names, ["in/y", "out/y", "x"])
        self.assertEqual({os.path.getsize(self.path("out", "tree", name)) for name in names}, {400000})

    def test_inputs_and_results_of_lua_tasks_leave_their_sources_unchanged(self):
        result = self.keeps_the_world(lambda: self.run_body(r'''
local list = flow.shell("list", { args = { "home" }, command = [[cd {home}; find -L . -type f | sort | tr '\n' ' ']] })
local take = flow.task("take", function(ctx, home)
  assert(os.execute("ln -s " .. home .. " " .. ctx.dir .. "/home; ln -s %s " .. ctx.dir .. "/away"))
  return { ctx:file("home"), ctx:file("away"), ctx:file("away/big.bin") }
end)
return PIPELINE return { list(p.home).stdout, take(p.home) } end)
''' % self.home, "--param", "home=home", params="home = flow.param.path {}"))
        self.assertEqual(result[0], "./alias ./below/deep.bin ./big.bin ./linked/deep.bin ./small.txt ./tool ")
        self.assertEqual([file["$file"]["size"] for file in result[1]], [5 * LARGE + 9, 5 * LARGE + 9, LARGE])

    def test_examples_leave_their_inputs_unchanged(self):
        shutil.copytree(EXAMPLES, self.path("home", "examples"), ignore=shutil.ignore_patterns(".flow"))
        os.symlink("examples", self.path("home", "link"))
        os.symlink("link/data/shakespeare.txt", self.path("home", "corpus"))
        for words in (("home/link/word_count.lua",), ("home/link/word_count.lua", "--param", "corpus=home/corpus"),
                      ("home/link/shell.lua",), ("home/link/hello.lua",)):
            with self.subTest(words):
                self.keeps_the_world(lambda: self.good("run", *words, "--out", self.path("out")))
        self.keeps_the_world(lambda: self.good("gc", "--keep", "0"))

    def test_gc_follows_no_link(self):
        run = 'local t = flow.shell("t", { command = "touch made; exit 1" })\nreturn PIPELINE return t {} end)\n'
        self.write("pipeline.lua", HEAD + run.replace("PIPELINE", 'flow.pipeline("outside", {}, function(p)'))
        self.exits(1, self.flow("run", "."))
        (name,) = [each["run"] for each in self.runs()]
        scratch = self.path(".flow", "scratch", name)
        (attempt,) = os.listdir(scratch)
        os.symlink(self.home, os.path.join(scratch, attempt, "d"))
        hexes = self.path("home", "f" * 62)
        self.write(hexes, "like an object")
        for folder in ("objects", "checkpoints"):
            os.makedirs(self.path(".flow", folder), exist_ok=True)
            os.symlink(self.home, self.path(".flow", folder, "ab"))
        os.symlink(hexes, self.path(".flow", "objects", "f" * 62))
        self.keeps_the_world(lambda: self.good("gc", "--keep", "0"))
        self.assertFalse(os.path.lexists(scratch))
        self.assertTrue(os.path.islink(self.path(".flow", "objects", "ab")))

    def test_blobs_are_not_written_through_a_linked_folder_but_the_objects_folder_may_be_a_link(self):
        self.write("pipeline.lua", HEAD + 'return flow.pipeline("outside", {}, function() return 1 end)\n')
        self.good("run", ".")  # creates the state
        shutil.rmtree(self.path(".flow", "objects"), ignore_errors=True)
        os.mkdir(self.path("disk"))
        os.symlink(self.path("disk"), self.path(".flow", "objects"))
        digest = hashlib.sha256(b"\0" * LARGE).hexdigest()
        self.write("pipeline.lua", HEAD + r'''
local t = flow.shell("t", { outputs = { o = "o" }, retries = { infra = 0 }, command = [[head -c %d /dev/zero > o]] })
return flow.pipeline("outside", {}, function() return t {}.o end)
''' % LARGE)
        os.symlink(self.home, self.path("disk", digest[:2]))
        done = self.keeps_the_world(lambda: self.exits(1, self.flow("run", ".")))
        self.assertIn("is a symbolic link, and blobs are not written through links", done.err)
        os.remove(self.path("disk", digest[:2]))
        self.good("run", ".")
        self.assertEqual(content_of(self.path("disk", digest[:2], digest[2:])), digest)
        self.good("gc", "--keep", "0")
        self.assertEqual(os.listdir(self.path("disk", digest[:2])), [])

    def test_copying_out_does_not_leave_the_target(self):
        body = 'local t = flow.shell("t", { outputs = { d = "d" }, command = [[mkdir -p d/e; echo 1 > d/e/f]] })\nreturn PIPELINE return t {} end)\n'
        self.run_body(body)
        os.makedirs(self.path("real", "inner"))
        os.symlink("real", self.path("out"))
        os.symlink(self.home, self.path("real", "d"))
        done = self.keeps_the_world(lambda: self.flow("get", "last", "-o", "out"))
        self.exits(4, done, "`out/d` is a symbolic link, which leads out of the target `out`")
        os.remove(self.path("real", "d"))
        os.symlink("inner", self.path("real", "d"))
        self.good("get", "last", "-o", "out")
        self.assertEqual(self.read("real/inner/e/f"), "1\n")


if __name__ == "__main__":
    main()
