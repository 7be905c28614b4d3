#!/usr/bin/env python3
"""The commands and configuration files in the documents work as written, and every block of them is run by a test.
Blocks of Lua are run by tests/lua/docs.py, the commands of CONTRIBUTING.md are checked by tests/layout/contributing.py.

usage: documents.py --flow BIN [TEST...]
"""
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
import cluster_place  # noqa: E402
from cluster_place import place  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# Blocks by their first line: the test below that runs it, or the file that does, relative to tests/.
RUN_BY = {
    "$ flow run words.lua --param text=README.md": "test_the_first_pipeline_of_the_readme",
    "sudo apt install ./flow_0.1.0-1_amd64.deb": "package/deb.py",
    "cmake/setup run     # trains a small network on handwritten digits, evaluates it, serves it for 20 seconds": "interop/digits.py",
    "flow run pipeline.lua --workers 2              # two workers on this machine, for a try": "test_several_machines",
    "$ flow init hello": "test_the_first_pipeline_of_the_guide",
    "$ flow plan pipeline.lua     # what would run, and why; nothing runs": "test_running_it_again",
    '[tasks."align*"]': "test_the_configuration_of_the_guide",
    "flow run . --name prod --detach                    # serves in the background": "cli/services.py",
    "[defaults]": "test_the_configuration_of_the_reference",
    "[notify]": "cli/notify.py",
    "[prices]": "test_the_prices_of_the_operations",
    "flow head --log-file /var/log/flow-head.log": "test_several_machines",
    '2026-11-28T10:00:00.123Z info  worker joined worker=w1 detail="8 CPU slots, 0 GPUs"': "test_several_machines",
    "succeeded: 4 tasks: 1 cached, 3 ran, 0 retried, 0 failed; 2.3s; state 1.2 MiB": "test_the_last_line_of_a_run",
    "digits  20261121-051700-k3f9x2  running": "cli/display.py",
    "#include <flow/flow.hpp>": "embed/embed.sh",
    "find_package(flow REQUIRED)": "embed/embed.sh",
    "from safetensors.torch import load_file": "interop/safetensors_test.py",
    "flow report last -o run.html": "test_the_reports_of_the_reference",
    "flow export last --format mlflow -o http://localhost:5000 --experiment digits": "interop/mlflow_server.py",
    "pipeline.lua:30: the kernel `saxpy` can't be compiled for sm_90:": "kernels/jit/script_test.cc",
}


def blocks(path):
    """(language, text) of each block; those of Lua are run elsewhere."""
    for found in re.finditer(r"^```(\w*)\n(.*?)^```", path.read_text(), re.M | re.S):
        yield found[1], found[2]


def block(document, start):
    """The text of the block that starts with this line."""
    (text,) = [text for _, text in blocks(ROOT / document) if text.startswith(start)]
    return text


def first_script(document):
    """The document's first whole script."""
    return next(text for language, text in blocks(ROOT / document) if language == "lua" and "return flow.pipeline(" in text)


def commands(text):
    """(command, the lines that it prints) of each command: the lines with `$ `, or all lines."""
    prompts = text.startswith("$ ")
    found = []
    for line in text.splitlines():
        if not prompts:
            found.append((line, []))
        elif line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


class Documents(cluster_place.ClusterPlace):
    def setUp(self):
        super().setUp()
        self.env["PATH"] = os.path.dirname(place.OPTIONS.flow) + ":" + self.env["PATH"]

    def sh(self, command):
        self.assertRegex(command, r"^flow ")
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=place.WAIT_SECONDS_MAX)
        return self.exits(0, place.Done(done.returncode, done.stdout, done.stderr))

    def transcript(self, text):
        """Runs the commands, and compares what the document says that they print."""
        outputs = []
        for command, lines in commands(text):
            done = self.sh(command)
            if lines:
                self.assertEqual(done.out.splitlines(), lines, command)
            outputs.append(done.out)
        return outputs

    def test_every_block_is_run_by_a_test(self):
        found = {text.splitlines()[0] for path in DOCUMENTS for language, text in blocks(path) if language != "lua"}
        self.assertEqual(sorted(found), sorted(RUN_BY))
        for what in RUN_BY.values():
            self.assertTrue(hasattr(self, what) or (ROOT / "tests" / what).exists(), what)

    def test_every_option_that_the_text_names_exists(self):
        helps, count = {}, 0
        for path in DOCUMENTS:
            for command in re.findall(r"`(flow [a-z][^`]*)`", path.read_text()):
                words = command.replace("\\|", " ").split()
                verb = words[1]
                if verb not in helps:
                    helps[verb] = self.sh(f"flow {verb} --help").out
                for option in [word.split("=")[0] for word in words[2:]]:
                    option = option.strip("[]…,")
                    if option == "--":
                        break
                    if re.fullmatch(r"--[a-z-]+|-[a-z]", option):
                        count += 1
                        self.assertRegex(helps[verb], rf"(^|[\s,]){option}\b", f"{path.name}: `{command}`")
        self.assertGreater(count, 20)

    def test_the_first_pipeline_of_the_readme(self):
        self.write("words.lua", first_script("README.md"))
        self.write("README.md", "some words in a file\n")
        (out,) = self.transcript(block("README.md", "$ flow run words.lua"))
        self.assertIn('result: {"words":5}', out)

    def test_the_prices_of_the_operations(self):
        self.write("flow.toml", block("docs/operations.md", "[prices]"))
        self.write("pipeline.lua", '''
local flow = require "flow"
local work = flow.shell("work", { cpus = 1, memory = "10MB", outputs = { out = "out" }, command = "echo > {outputs.out}" })
return flow.pipeline("priced", {}, function() return work() end)
''')
        self.good("run", ".")
        values = {line["option"]: line["value"] for line in self.good("plan", ".", "--explain-config", "--json").lines()
                  if line["table"] == "prices"}
        total = self.good("cost", "--json").lines()[0]["total"]
        amount = total["cpu_hours"]["held"] * values["cpu_hour"] + total["memory_gb_hours"]["held"] * values["memory_gb_hour"]
        self.assertAlmostEqual(total["amount"], amount, 8)
        text = (ROOT / "docs/operations.md").read_text()
        for cpu_hour, written in ((values["cpu_hour"], "0.105"), (values['label."pool=spot".cpu_hour'], "0.045")):
            self.assertAlmostEqual(4 * 0.5 * cpu_hour + 10 * 0.5 * values["memory_gb_hour"], float(written), 9)
            self.assertIn("%g + 10 × 0.5 h × %g = %s USD" % (cpu_hour, values["memory_gb_hour"], written), text)

    def test_the_first_pipeline_of_the_guide(self):
        init, run = self.transcript(block("docs/guide.md", "$ flow init hello"))
        self.assertIn("pipeline.lua", init)
        self.assertIn("succeeded", run)

    def test_running_it_again(self):
        self.write("pipeline.lua", first_script("docs/guide.md"))
        self.sh("flow run pipeline.lua")
        self.sh("flow run pipeline.lua --param n=7")
        newer, older = [run["run"] for run in self.runs()]
        text = block("docs/guide.md", "$ flow plan pipeline.lua").replace("RUN1", older).replace("RUN2", newer)
        plan, why, diff, fresh = self.transcript(text)
        self.assertIn("cached", plan)
        self.assertIn("double", why)
        self.assertIn("double", diff)
        self.assertIn("3 ran", fresh)

    def configured(self, document, start):
        """The options of the tasks `align`, as --explain-config prints them with the document's flow.toml."""
        self.write("flow.toml", block(document, start))
        self.write("pipeline.lua", 'local flow = require "flow"\nlocal align = flow.task("align", function() return 1 end)\n'
                                   'return flow.pipeline("p", {}, function() return align() end)\n')
        self.env["ALIGN_TOKEN"] = "a secret"
        self.sh("flow plan pipeline.lua")
        return self.sh("flow plan pipeline.lua --explain-config --profile cluster").out

    def test_the_configuration_of_the_guide(self):
        explained = self.configured("docs/guide.md", '[tasks."align*"]')
        for words in ("memory", "16", "slurm", "gpu"):
            self.assertIn(words, explained)

    def test_the_configuration_of_the_reference(self):
        explained = self.configured("docs/reference-cli.md", "[defaults]")
        for words in ("memory", "16", "slurm", "gpu", "0:8", "TMPDIR", "retries"):
            self.assertIn(words, explained)
        self.assertNotIn("a secret", explained)

    def test_the_last_line_of_a_run(self):
        self.write("pipeline.lua", first_script("docs/guide.md"))
        shape = lambda text: re.sub(r"[\d.]+ ?(m?s|\w?i?B)?\b", "N", text)
        wanted = block("docs/reference-cli.md", "succeeded: 4 tasks")
        done = self.sh("flow run pipeline.lua")
        self.assertEqual(shape((done.out + done.err).splitlines()[-1]), shape(wanted.strip()))

    def test_the_reports_of_the_reference(self):
        self.write("pipeline.lua", first_script("docs/guide.md"))
        self.sh("flow run pipeline.lua --name nightly")
        self.sh("flow run pipeline.lua --param n=7")
        written = self.transcript(block("docs/reference-cli.md", "flow report last"))
        self.assertEqual(written, ["run.html\n", "compared.html\n"])
        self.assertLess(os.path.getsize(self.path("run.html")), os.path.getsize(self.path("compared.html")))

    def test_several_machines(self):
        """The host names, ports and files of the documents become those of this machine."""
        self.write("pipeline.lua", first_script("docs/guide.md"))
        (alone, head, worker, over_state, client, slurm), _ = zip(*commands(block("README.md", "flow run pipeline.lua --workers 2")))
        logged_head, logged_worker = block("docs/operations.md", "flow head --log-file").splitlines()
        self.sh(alone)
        head, worker, over_state, client, slurm = [each.split("#")[0].split() for each in (head, worker, over_state, client, slurm)]
        here = f"127.0.0.1:{self.port}"

        def begin(words, added):
            names = {"0.0.0.0:7117": here, "head:7117": here, "HOST:PORT": here, "secret": self.path("secret"), "FILE": self.path("secret")}
            return self.start(*[names.get(each, each.replace("/var/log", self.folder)) for each in words[1:] + added.split()[2:]])

        process = begin(head, logged_head)
        joined = ""
        while "workers join it with: " not in joined:
            joined = process.stdout.readline()
            self.assertTrue(joined, "the head has ended")
        secret = re.search(r"--secret-file (\S+)", joined)[1]
        os.symlink(secret, self.path("secret"))
        log = logged_worker.split("--secret-file FILE")[1]
        begin([*worker, "--name", "w1", "--dir", self.path("w1")], "flow worker" + log)
        self.until_status("w1", "up")
        self.sh(" ".join(over_state) + " --fresh")
        done = self.end(begin(client, "flow run"))
        self.exits(0, done)
        for option in [word for word in slurm if word.startswith("--")]:
            self.assertIn(option, self.sh("flow run --help").out)
        self.check_log_lines()

    def check_log_lines(self):
        """The head's and the worker's log have the form that the document shows."""
        shown = block("docs/operations.md", "2026-11-28T10:00:00.123Z")
        pattern = re.compile(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (error  |warning|info   |debug  |info |error )\s?[a-z].*')
        for line in shown.splitlines() + self.read("flow-head.log").splitlines():
            self.assertRegex(line, pattern)
        joined = next(line for line in self.read("flow-head.log").splitlines() if "worker joined" in line)
        shape = lambda text: re.sub(r"\d+", "N", text.split("Z ", 1)[1])
        self.assertEqual(shape(joined), shape(shown.splitlines()[0]))
        self.assertRegex(self.read("flow-worker.log").splitlines()[0], r'^\{"time":"[^"]+","level":"[a-z]+","message":"')


if __name__ == "__main__":
    place.main()
