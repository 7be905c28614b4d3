#!/usr/bin/env python3
"""flow report in a headless Chromium, from file://: each view shows the numbers that --json prints, and nothing is requested. Skipped (77)
without Debian's chromium, chromium-driver and python3-selenium.

usage: report_views.py --flow BIN [TEST...]
"""
import base64
import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import unittest
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "page"))
import page_views  # noqa: E402, before selenium: it may start again with Debian's Python
import browser  # noqa: E402
from page_place import BIG, SCRIPT, WAITS, PagePlace  # noqa: E402
from page_views import counts_in, set_counts  # noqa: E402
from place import OPTIONS, main  # noqa: E402

SIZE_MAX = 5 * 1000 * 1000

# Files in, files out, a command and a secret.
FILES = r'''
local flow = require "flow"
local copy = flow.shell("copy", { args = { "text" }, outputs = { copied = "copied.txt" }, env = { KEY = flow.env("REPORT_KEY") },
  command = [[cat {text} > {outputs.copied}; echo "the key is $KEY"]] })
return flow.pipeline("files", { text = flow.param.path {} }, function(p) return copy(p.text).copied end)
'''

# Text that could end a script, a comment or a template.
EVIL = "</script><script>window.hit = 1</script><!-- <img src=x onerror=\"window.hit = 1\"> {{data}} \u2028 end"
HOSTILE = r'''
local flow = require "flow"
local evil = flow.task("evil", function(ctx, text) ctx:log(text) ctx:metric("loss", 1, 1) return text end)
local bad = flow.task("bad", function(ctx, text) error(text) end)
return flow.pipeline("hostile", { text = flow.param.string {} }, function(p)
  return { flow.map(evil, { p.text }), bad(p.text) }
end)
'''


def data_of(html):
    packed = re.search(r'id="data">([^<]*)</script>', html)[1]
    return json.loads(zlib.decompress(base64.b64decode(packed)))


class Reports(PagePlace):
    all, texts, text, wait, click, visit, is_quiet = (getattr(page_views.Views, each)
                                                      for each in ("all", "texts", "text", "wait", "click", "visit", "is_quiet"))

    def setUp(self):
        super().setUp()
        self.write("mixed.lua", SCRIPT)

    def report(self, *runs, name="run.html"):
        """The path of a report, and its data."""
        self.assertEqual(self.good("report", *runs, "-o", name).out, name + "\n")
        return self.path(name), data_of(self.read(name))

    def browse(self, path, dark=False, width=1200):
        self.driver = browser.open_tab(self, width, dark)
        self.driver.get("file://" + path)
        self.wait("the report", lambda: self.shown() == "#/")

    def shown(self):
        return self.driver.execute_script("return document.body ? document.body.dataset.shown || '' : ''")

    def open_view(self, path):
        self.visit(path)
        self.wait(path, lambda: self.shown() == path)

    def is_offline(self):
        """Only the file itself was loaded."""
        urls = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                urls.add(message["params"]["request"]["url"].split("#")[0])
        self.assertEqual({url for url in urls if not url.startswith("data:image/svg+xml;base64,")}, {self.driver.current_url.split("#")[0]})

    def rows(self, selector):
        return self.driver.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((row) => [...row.cells].map((cell) => cell.textContent))", selector)

    # ---- one run

    def test_a_run_has_the_numbers_of_json(self):
        self.flow("run", "mixed.lua", "--name", "nightly", "--quiet")
        run = self.show("nightly")
        path, data = self.report("nightly")
        self.assertEqual(data["runs"][0]["row"], run)
        self.browse(path)
        self.assertEqual(self.text("h1"), "nightly")
        self.assertEqual(self.text("#state"), "Report of 1 run")
        self.assertEqual(self.text("#facts .state"), run["status"])
        self.assertEqual(counts_in(self.text("#counts")), set_counts(run))
        self.assertIn("part 3 is broken", self.text("#failures li"))
        self.assertEqual(len(self.all(".graph .edge")), 2)
        ran = sorted(task["name"] for task in run["tasks"] if task["attempts"] > 0)
        self.assertEqual(sorted(self.driver.execute_script("return [...document.querySelectorAll('.spans .span:not(.earlier)')].map((bar) => bar.dataset.task)")), ran)
        earlier = self.earlier_attempts("nightly")
        self.assertEqual(self.driver.execute_script("return [...document.querySelectorAll('.spans .earlier')].map((bar) => [bar.dataset.task, Number(bar.dataset.attempt)])"),
                         [list(each) for each in earlier])
        self.assertEqual(len(earlier), 1)
        self.assertEqual(len(self.all(".plot")), 4)
        self.wait("the usage", lambda: len(self.rows("#usage tbody tr")) == len(run["tasks"]))
        for task, cells in zip(run["tasks"], self.rows("#usage tbody tr")):
            self.assertEqual(cells[:3], [task["name"], task["status"], str(task["attempts"])])
            for cell, number in ((cells[3], task["duration_s"] if task["attempts"] > 0 else None), (cells[4], task["cpu_s"]), (cells[9], task["queue_s"])):
                self.assertEqual(cell, "–" if number is None else "%d ms" % int(number * 1000 + 0.5) if number * 1000 < 999.5 else "%.1f s" % number, task)
            self.assertEqual(cells[10], (task["error"] or "").split("\n")[0])
        self.assertIn(data["host"], self.text("#made-on"))
        self.assertEqual(self.all(".actions code"), [])
        code = hashlib.sha256(SCRIPT.encode()).hexdigest()
        self.assertEqual([row[:2] for row in self.rows("#code tbody tr")], [["mixed.lua", code]])
        cost = self.good("cost", "nightly", "--json").lines()[0]
        self.assertEqual(data["runs"][0]["cost"]["cost"], cost)
        self.click("#cost-panel summary")
        self.wait("the cost", lambda: len(self.rows("#cost .costs tbody tr")) == len(cost["rows"]) + 1)
        self.assertIn("No prices are configured", self.text("#cost .no-prices"))
        self.click("#log-panel summary")
        lines = self.flow("logs", "nightly", "--json").lines()
        self.wait("the log", lambda: self.texts("#log-lines .text") == [line["text"] for line in lines])
        self.is_quiet()
        self.is_offline()

    def test_a_task_has_its_log_its_reason_and_its_values(self):
        self.flow("run", "mixed.lua", "--quiet")
        task = self.tasks()["work[3]"]
        path, _ = self.report()
        self.browse(path)
        self.open_view("#/runs/%s/task/work%%5B3%%5D" % self.show()["run"])
        self.assertEqual((self.text("h1"), self.text("#facts .state"), self.text("#attempt-count")), ("work[3]", "failed", str(task["attempts"])))
        self.assertEqual(self.text("#error pre"), task["error"])
        self.assertEqual(self.text("#why"), self.good("why", "last", "work[3]").out.strip())
        self.assertEqual(self.text("#arguments"), "[\n  3\n]")
        lines = self.flow("logs", "last", "work[3]", "--json").lines()
        self.assertEqual(self.texts("#log-lines .text"), [line["text"] for line in lines])
        self.click("#log-attempt option[value='2']")
        self.wait("the attempt", lambda: self.texts("#log-lines .text") == [line["text"] for line in lines if line["attempt"] == 2])
        self.all("#log-search")[0].send_keys("STEP 4")
        self.wait("the search", lambda: self.texts("#log-lines .text") == ["step 4 of part 3"])
        self.assertIn("1 of 5 lines", self.text("#log-note"))
        self.assertIn("last 0.6 · best 0.6 · min 0.6 · max 3", self.text(".plot p"))
        (first,) = [each for (name, _), each in self.earlier_attempts("last").items() if name == "work[3]"]
        cells = self.rows("#attempts tr[data-attempt='1']")[0]
        self.assertEqual(cells[:4], ["1", "failed", first["args"]["cause"], first["args"]["worker"]])
        self.open_view("#/runs/%s/task/none" % self.show()["run"])
        self.assertEqual(self.text("h1"), "Not found")
        self.is_quiet()
        self.is_offline()

    def test_files_have_their_digests_and_secrets_are_not_there(self):
        self.write("files.lua", FILES)
        self.write("in.txt", "some text\n")
        self.good("run", "files.lua", "--param", "text=in.txt", "--quiet", REPORT_KEY="opensesame-4711")
        path, data = self.report()
        self.assertNotIn("opensesame", json.dumps(data))
        self.assertNotIn("opensesame", self.read("run.html"))
        self.browse(path)
        digest = hashlib.sha256(b"some text\n").hexdigest()
        self.assertEqual(self.rows("#inputs tbody tr"), [["/inputs/in.txt", digest, "10 B", "–"]])
        self.assertEqual(self.rows("#results tbody tr"), [["/copy/copied.txt", digest, "10 B", "copy"]])
        self.click("#results tbody a")
        self.wait("the task", lambda: self.text("h1") == "copy" and len(self.rows("#outputs tbody tr")) == 1)
        self.assertEqual([row[0] for row in self.rows("#outputs tbody tr")], ["/copy/copied.txt"])
        self.is_quiet()

    def git(self, *words):
        isolated = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        done = subprocess.run(["git", "-C", self.path("."), "-c", "user.name=a", "-c", "user.email=a@b", *words], env={**os.environ, **isolated},
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    @unittest.skipUnless(shutil.which("git"), "git is not installed")
    def test_the_git_revision_of_the_code(self):
        """At submission: the commit, and whether files of the run differ from it."""
        script = 'local flow = require "flow"\nlocal lib = require "lib"\nreturn flow.pipeline("none", {}, function() return lib end)'
        self.write("code.lua", script)
        self.write("lib.lua", "return 1")
        self.good("run", "code.lua", "--name", "outside", "--quiet")
        self.git("init", "--quiet")
        self.git("add", "code.lua")
        self.git("commit", "--quiet", "-m", "one")
        first = self.git("rev-parse", "HEAD")
        self.good("run", "code.lua", "--name", "untracked", "--quiet")
        self.git("add", "lib.lua")
        self.git("commit", "--quiet", "-m", "two")
        second = self.git("rev-parse", "HEAD")
        self.write("notes.txt", "of no run")
        self.good("run", "code.lua", "--name", "clean", "--quiet")
        self.write("lib.lua", "return 2")
        self.good("run", "code.lua", "--name", "changed", "--quiet")
        typed = subprocess.run([OPTIONS.flow, "run", "-", "--name", "typed", "--quiet"], cwd=self.folder, env=self.env, input=script, text=True, timeout=600)
        self.assertEqual(typed.returncode, 0)
        names = ["outside", "untracked", "clean", "changed", "typed"]
        path, data = self.report(*names)
        self.assertEqual([run["code"]["revision"] for run in data["runs"]], [
            None, {"id": first, "dirty": True}, {"id": second, "dirty": False}, {"id": second, "dirty": True}, None])
        driver = self.read("/sys/module/nvidia/version").strip() if os.path.exists("/sys/module/nvidia/version") else None
        self.assertEqual(data["driver"], driver)
        self.browse(path)
        for run, text in zip(data["runs"], (None, first + " with changes that are not committed", second)):
            self.open_view("#/runs/" + run["row"]["run"])
            self.wait("the code", lambda: self.all("#code .facts"))
            if text is None:
                self.assertNotIn("Git revision", self.text("#code"))
            else:
                self.assertIn("Git revision" + text, self.text("#code"))
                self.assertEqual("with changes" in self.text("#code"), "with changes" in text)
            self.assertEqual("NVIDIA driver" in self.text("#made-on"), driver is not None)
        self.is_quiet()

    def test_text_of_a_run_is_never_markup(self):
        self.write("hostile.lua", HOSTILE)
        self.flow("run", "hostile.lua", "--param", "text=" + EVIL, "--name", "</script><script>window.hit = 1</script>", "--quiet")
        run = self.show()
        path, data = self.report()
        self.assertEqual(data["runs"][0]["row"]["params"]["text"], EVIL)
        self.assertNotIn("window.hit", self.read("run.html"))
        self.browse(path)
        self.assertEqual(self.text("h1"), run["name"])
        self.assertIn("<!-- <img src=x", self.text("#params pre"))
        self.open_view("#/runs/%s/task/evil%%5B1%%5D" % run["run"])
        self.assertEqual(self.texts("#log-lines .text"), [EVIL])
        self.open_view("#/runs/%s/task/bad" % run["run"])
        self.assertIn("</script><script>", self.text("#error pre"))
        self.assertEqual(self.driver.execute_script("return [window.hit === undefined, document.scripts.length, document.images.length]"), [True, 2, 0])
        self.is_quiet()
        self.is_offline()

    def test_a_run_without_tasks(self):
        self.write("none.lua", 'local flow = require "flow"\nreturn flow.pipeline("none", {}, function() return 1 end)')
        self.good("run", "none.lua", "--quiet")
        path, _ = self.report()
        self.browse(path)
        self.assertEqual((self.text("h1"), self.text(".graph"), self.text("#counts")), ("none", "The run has no tasks.", "no tasks"))
        self.is_quiet()

    def test_a_run_that_goes_on_is_frozen(self):
        self.write("waits.lua", WAITS)
        process = self.start("run", "waits.lua", "--param", "path=" + self.path("gate"), "--name", "held")
        self.until_holds("first")
        path, data = self.report("held")
        self.open("gate")
        self.exits(0, self.end(process))
        self.browse(path)
        self.assertEqual(self.text("#facts .state"), "running")
        made, started = (datetime.datetime.fromisoformat(text.rstrip("Z")) for text in (data["made"], data["runs"][0]["row"]["started"]))
        milliseconds = (made - started) // datetime.timedelta(milliseconds=1)
        self.assertEqual(self.text("#facts [data-since]"), "%d ms" % milliseconds if milliseconds < 1000 else "%.1f s" % (milliseconds / 1000))
        self.is_quiet()

    # ---- several runs

    def test_several_runs_are_compared(self):
        for rate in ("0.5", "0.1"):
            self.flow("run", "mixed.lua", "--param", "lr=" + rate, "--name", "rate" + rate, "--quiet", "--fresh")
        ids = [self.show(name)["run"] for name in ("rate0.5", "rate0.1")]
        path, data = self.report("rate0.5", "rate0.1", ids[0])
        self.assertEqual([run["row"]["run"] for run in data["runs"]], ids, "each once")
        self.browse(path)
        self.assertEqual([row.get_attribute("data-run") for row in self.all("#runs tbody tr")], ids)
        for id in ids:
            self.assertEqual(counts_in(self.text("#runs tr[data-run='%s'] td:nth-child(3)" % id)), set_counts(self.show(id)))
        self.assertEqual(self.rows("#parameters tbody tr"), [["lr", "0.5", "0.1"]])
        self.assertEqual(len(self.all("#parameters .differs")), 1)
        compared = {row[0]: row[1:] for row in self.rows("#metrics tbody tr")}
        for series in self.flow("metrics", ids[0], "--json").lines():
            for what in ("last", "best"):
                self.assertEqual([float(cell) for cell in compared["loss of %s, %s" % (series["task"], what)]], [series[what]] * 2)
        names = ["loss of work[%d]" % number for number in range(1, 5)]
        self.assertEqual([figure.get_attribute("data-metric") for figure in self.all(".overlay")], names)
        for number, figure in enumerate(self.all(".overlay"), 1):
            self.assertIn("steps 1 to 5, values %s to %d" % (number / 5, number), figure.text)
        self.assertEqual(len(self.all(".overlay .run0")), 4)
        self.assertEqual(len(self.all(".overlay .run1")), 4)
        self.assertEqual([text.strip() for text in self.texts("#legend li")], ["rate0.5", "rate0.1"])
        self.assertEqual({row[0] for row in self.rows("#durations tbody tr")}, {"load", "work", "tool"})
        self.click("#runs tbody tr:nth-child(2) a")
        self.wait("the run", lambda: self.text("h1") == "rate0.1" and len(self.all("#usage")) == 1)
        self.click(".crumbs a")
        self.wait("all runs", lambda: self.text("h1") == "Runs")
        self.is_quiet()
        self.is_offline()

    # ---- a large one

    def test_10000_tasks_are_less_than_5_megabytes(self):
        self.write("many.lua", BIG.replace("return n end", 'ctx:log("item " .. n) return n end'))
        self.good("run", "many.lua", "--param", "n=10000", "--quiet")
        run = self.show()
        path, data = self.report()
        self.assertLess(os.path.getsize(path), SIZE_MAX)
        self.assertEqual(data["runs"][0]["row"], run)
        self.assertEqual(data["runs"][0]["logs"]["total"], 10000)
        self.browse(path)
        self.wait("the tasks", lambda: self.text("#task-summary") == "10,000 tasks")
        self.assertEqual(counts_in(self.text("#counts")), {"succeeded": 10000})
        self.all("#task-search")[0].send_keys("work[9876]")
        self.wait("one row", lambda: self.texts("#tasks-title ~ .list tbody a") == ["work[9876]"])
        self.open_view("#/runs/%s/task/work%%5B9876%%5D" % run["run"])
        self.assertIn("explains 1000 of 10000 tasks", self.text("#why"))
        self.assertEqual(self.text("#log-note"), "1 line")
        self.is_quiet()

    def test_a_phone_in_the_dark(self):
        self.flow("run", "mixed.lua", "--quiet")
        self.flow("run", "mixed.lua", "--param", "lr=0.1", "--quiet")
        path, data = self.report(*[run["run"] for run in self.runs()])
        self.browse(path, width=390)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True})
        run = data["runs"][0]["row"]["run"]
        for view in ("#/", "#/runs/" + run, "#/runs/%s/task/work%%5B3%%5D" % run):
            self.open_view(view)
            self.assertLessEqual(self.driver.execute_script("return document.documentElement.scrollWidth - innerWidth"), 0, view)
            nameless = self.driver.execute_script("""
                const named = (e) => e.getAttribute("aria-label") || (e.labels && e.labels.length > 0) || e.textContent.trim() !== "" ||
                  (e.getAttribute("aria-labelledby") && document.getElementById(e.getAttribute("aria-labelledby")));
                return [...document.querySelectorAll("a, button, input, select, section, [role=region], [role=img], table")]
                  .filter((e) => !named(e)).map((e) => e.outerHTML)""")
            self.assertEqual(nameless, [], view)
            ids = self.driver.execute_script("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
            self.assertEqual(len(ids), len(set(ids)), view)
        self.is_quiet()

    # ---- the command

    def test_the_file_is_replaced_only_with_force(self):
        self.exits(2, self.flow("report", "-o", "run.html"), "there is no run")
        self.flow("run", "mixed.lua", "--quiet")
        self.report()
        self.write("run.html", "mine")
        self.exits(2, self.flow("report", "-o", "run.html"), "`run.html` exists already", "--force")
        self.assertEqual(self.read("run.html"), "mine")
        self.assertEqual(self.good("report", "-o", "run.html", "--force", "--json").lines(), [{"path": "run.html"}])
        written = data_of(self.read("run.html"))
        printed = data_of(self.good("report", "last", "-o", "-").out)
        self.assertEqual(dict(written, made=""), dict(printed, made=""))
        self.assertFalse(os.path.exists(self.path("-")))
        self.exits(2, self.flow("report", "last"), "`flow report` needs -o")
        self.exits(2, self.flow("report", "nobody", "-o", "x.html"), "nobody")
        self.exits(4, self.flow("report", "last", "-o", "no/such/x.html"), "no/such")


if __name__ == "__main__":
    if None in browser.programs():
        print("skipped: chromium and chromium-driver are not installed")
        sys.exit(77)
    main()
