#!/usr/bin/env python3
"""The page of flow ui in a headless Chromium: each view shows the numbers that --json prints. Skipped (77) without Debian's chromium,
chromium-driver and python3-selenium.

usage: page_views.py --flow BIN [TEST...]

axe checks each view too: see page_browser.py.
"""
import datetime
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from page_browser import Browsing, By, Keys, axe_script, counts_in, set_counts, webdriver  # noqa: E402, F401, first: it may start again with Debian's Python
import browser  # noqa: E402
from page_place import ASKS, BYTES, NAMES, QUEUE, SERVES, SHAPES  # noqa: E402
from place import main  # noqa: E402


# Names as long words.
LONG_NAMES = r'''
local flow = require "flow"
local task = flow.task(("t"):rep(100), function(ctx) ctx:metric(("m"):rep(60), 1, 1) return 1 end)
return flow.pipeline(("p"):rep(60), {}, function() return task() end)
'''


class Views(Browsing):
    # ---- the views

    def test_runs_and_their_filter(self):
        for name in ("nightly", "weekly"):
            self.flow("run", "mixed.lua", "--name", name, "--quiet")
        self.good("run", "big.lua", "--param", "n=3", "--quiet")
        self.browse()
        self.assertNotIn("token", self.driver.current_url)
        runs = list(reversed(self.runs()))
        self.wait("the rows", lambda: len(self.all("#runs tr")) == 3)
        for run in runs:
            row = "#runs tr[data-run='%s']" % run["run"]
            self.assertEqual(self.text(row + " a"), run["name"] or run["pipeline"])
            self.assertEqual(self.text(row + " .state"), run["status"])
            self.assertEqual(counts_in(self.text(row + " .counts")), set_counts(run))
            self.assertEqual(self.all(row + " time")[0].get_attribute("datetime"), run["started"])
        self.assertEqual(self.texts("#runs .id"), [run["run"] for run in runs], "the newest first")
        self.all("#search")[0].send_keys("WEEK")
        self.wait("the search", lambda: self.text("#summary") == "1 of 3 runs")
        self.assertEqual(self.texts("#runs a"), ["weekly"])
        self.all("#search")[0].clear()
        self.all("#search")[0].send_keys(Keys.BACKSPACE)
        self.click("#status option[value=succeeded]")
        self.wait("the filter", lambda: self.texts("#runs a") == ["big"])
        self.assertIn("status=succeeded", self.driver.current_url)
        self.is_quiet()

    def test_a_run(self):
        self.flow("run", "mixed.lua", "--name", "nightly", "--quiet")
        run = self.show("nightly")
        self.browse()
        self.visit("#/runs/" + run["run"])
        self.wait("the run", lambda: self.text("h1") == "nightly" and self.texts("#groups tr"))
        self.assertEqual(self.text("#facts .state"), run["status"])
        self.assertEqual(counts_in(self.text("#counts")), set_counts(run))
        self.assertEqual(self.text("#failures h2"), "1 task failed")
        self.assertIn("part 3 is broken", self.text("#failures li"))
        by_task = {}
        for task in run["tasks"]:
            counts = by_task.setdefault(task["name"].split("[")[0], {})
            counts[task["status"]] = counts.get(task["status"], 0) + 1
        shown = {name: counts_in(self.text("#groups tr[data-group='%s'] .counts" % name)) for name in self.texts("#groups button")}
        self.assertEqual(shown, by_task)
        self.assertEqual(sorted(self.driver.execute_script("return [...document.querySelectorAll('.graph .box')].map((box) => box.dataset.group)")), sorted(by_task))
        edges = len(self.all(".graph .edge"))
        self.assertEqual(edges, 2, "load to work, work to sum")
        ran = sorted(task["name"] for task in run["tasks"] if task["attempts"] > 0)
        self.assertEqual(sorted(self.driver.execute_script("return [...document.querySelectorAll('.spans .span:not(.earlier)')].map((bar) => bar.dataset.task)")), ran)
        self.assertEqual(len(self.all(".spans .span:not(.earlier) .cross")), run["counts"]["failed"])
        self.assertEqual(self.text("#user"), run["tasks"][0]["user"])
        self.wait("the retry", lambda: len(self.all(".spans .retry")) == sum(task["attempts"] > 1 for task in run["tasks"]))
        rows = {cells[0]: cells for cells in self.driver.execute_script(
            "return [...document.querySelectorAll('.virtual tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))")}
        for task in run["tasks"]:
            name, state, attempts, _, worker = rows[task["name"]]
            self.assertEqual((state, attempts, worker), (task["status"], str(task["attempts"]), task["worker"] or "–"), name)
        self.assertEqual(len(self.all(".plot")), 4, "a plot for each part")
        self.assertEqual(len(self.texts("#params pre")), 1)
        self.all("#task-search")[0].send_keys("BROKEN")
        self.wait("the search", lambda: self.texts(".virtual tbody a") == ["work[3]"])
        self.is_quiet()

    def bars(self, selector):
        return self.driver.execute_script("""
            return [...document.querySelectorAll(arguments[0])].map((bar) => [bar.dataset.task, Number(bar.dataset.attempt), bar.querySelector("title").textContent])""", selector)

    def test_attempts_before_the_newest_one_are_in_the_timeline(self):
        self.flow("run", "mixed.lua", "--name", "nightly", "--quiet")
        self.flow("retry", "nightly", "load", "--quiet")
        self.flow("retry", "nightly", "--quiet")  # two more attempts of part 3
        run, wanted = self.show("nightly")["run"], self.earlier_attempts("nightly")
        self.assertGreaterEqual(len(wanted), 4)
        self.browse()
        self.visit("#/runs/" + run)
        self.wait("the bars", lambda: {(task, number) for task, number, _ in self.bars(".spans .earlier")} == set(wanted))
        for task, number, text in self.bars(".spans .earlier"):
            args = wanted[task, number]["args"]
            cause = " (%s)" % args["cause"] if "cause" in args else ""
            self.assertTrue(text.startswith("%s: %s%s, attempt %d, " % (task, args["outcome"], cause, number)), text)
        failed = sum(each["args"]["outcome"] == "failed" for each in wanted.values())
        self.assertEqual(len(self.all(".spans .earlier .cross")), failed)
        self.assertEqual(len(self.all(".spans .earlier .retry")), sum(number > 1 for _, number in wanted))
        self.assertEqual(self.all(".spans .earlier.critical"), [])
        self.visit("#/runs/%s/task/work%%5B3%%5D" % run)
        own = {number: each for (task, number), each in wanted.items() if task == "work[3]"}
        newest = self.tasks("nightly")["work[3]"]
        self.wait("the task's bars", lambda: self.text("h1") == "work[3]" and len(self.bars(".spans .span")) == newest["attempts"])
        self.assertEqual({number for _, number, _ in self.bars(".spans .earlier")}, set(own))
        rows = self.driver.execute_script("return [...document.querySelectorAll('#attempts tr')].map((row) => [...row.cells].map((cell) => cell.textContent))")
        self.assertEqual([int(cells[0]) for cells in rows], list(range(1, newest["attempts"] + 1)))
        times = [each.get_attribute("datetime") for each in self.all("#attempts time")]
        for cells, time in zip(rows[:-1], times):
            each = own[int(cells[0])]
            self.assertEqual(cells[1:4], [each["args"]["outcome"], each["args"].get("cause", "–"), each["args"]["worker"]])
            self.assertEqual(cells[5], "%d ms" % (each["dur"] // 1000) if each["dur"] < 1e6 else "%.1f s" % (each["dur"] / 1e6))
            self.assertEqual(datetime.datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp() * 1e6, each["ts"])
        self.assertEqual((rows[-1][1], rows[-1][2], times[-1]), (newest["status"], "user_error", newest["started"]))
        # A bar chooses the lines of its attempt.
        self.driver.execute_script("document.querySelector('.spans [data-attempt=\"2\"] rect').dispatchEvent(new MouseEvent('click', { bubbles: true }))")
        lines = [line["text"] for line in self.flow("logs", "nightly", "work[3]@2", "--json").lines()]
        self.wait("its log", lambda: self.texts("#log-lines .text") == lines and self.driver.execute_script("return document.getElementById('log-attempt').value") == "2")
        self.is_quiet()

    def test_the_timeline_is_zoomed_and_marks_the_critical_path(self):
        self.flow("run", "mixed.lua", "--quiet")
        run = self.show()
        self.browse()
        self.visit("#/runs/" + run["run"])
        self.wait("the bars", lambda: len(self.all(".spans .earlier")) == 1)
        # The last task to end, and before each task the one among its needs that ended last.
        tasks = [task for task in run["tasks"] if task["finished"] and task["attempts"] > 0]
        last = max(tasks, key=lambda task: task["finished"])
        marked = self.driver.execute_script("return [...document.querySelectorAll('.spans .critical')].map((bar) => bar.dataset.task)")
        self.assertIn(last["name"], marked)
        if last["name"].startswith("work"):
            self.assertEqual(sorted(marked), sorted(["load", last["name"]]))
        for name in marked:
            self.assertIn(name, self.text("#critical"))
        whole = self.texts(".spans .tick")
        self.assertFalse(self.all("#zoom-all")[0].is_enabled())
        self.click("#zoom-in")
        self.wait("half of it", lambda: self.texts(".spans .tick") != whole)
        zoomed = self.texts(".spans .tick")
        self.assertTrue(self.all("#zoom-left")[0].is_enabled())
        self.click("#zoom-left")
        self.wait("the begin", lambda: self.texts(".spans .tick")[0] == whole[0])
        self.assertNotEqual(self.texts(".spans .tick"), zoomed)
        self.click("#zoom-all")
        self.wait("the whole run", lambda: self.texts(".spans .tick") == whole)
        self.driver.execute_script("document.querySelector('.timeline .scroll').focus()")
        self.press("+")
        self.wait("zoomed by the keyboard", lambda: self.texts(".spans .tick") == zoomed)
        self.press("0")
        self.wait("the whole run again", lambda: self.texts(".spans .tick") == whole)
        self.is_quiet()

    def test_what_is_in_a_result(self):
        png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        self.write("shapes.lua", SHAPES.replace("PNG", png))
        self.good("run", "shapes.lua", "--quiet")
        run = self.show()["run"]
        self.browse()
        self.visit("#/runs/%s/task/rows" % run)
        self.wait("the table", lambda: len(self.all("#result-table tbody tr")) == 2)
        self.assertEqual(self.texts("#result-table th"), ["n", "name"])
        self.assertEqual(self.texts("#result-table td"), ["1", "a", "2", "b"])
        self.visit("#/runs/%s/task/numbers" % run)
        self.wait("the tensor", lambda: "i64 2 × 3, 48 B" in self.text("#parts li"))
        self.assertIn("min 1 · mean 4 · max 9", self.text("#parts li"))
        self.visit("#/runs/%s/task/files" % run)
        self.wait("the files", lambda: len(self.all("#parts li")) == 3)
        self.wait("the picture", lambda: self.driver.execute_script("const i = document.querySelector('#parts img'); return i && i.complete && i.naturalWidth") == 1)
        self.assertEqual(len(self.all("#parts img")), 1)
        self.assertIn("a <b>note</b>", self.text("#parts [data-path=text] pre"))
        self.assertIn("<svg", self.text("#parts [data-path=page] pre"), "as text only")
        self.is_quiet()

    def test_metrics_of_several_runs_in_one_plot(self):
        for name in ("one", "two"):
            self.flow("run", "mixed.lua", "--name", name, "--fresh", "--quiet")
        points = {run: {each["task"]: each["points"] for each in self.good("metrics", run, "--json").lines()} for run in ("one", "two")}
        runs = {name: self.show(name)["run"] for name in ("one", "two")}
        self.browse()
        self.visit("#/metrics?run=%s&run=%s" % (runs["one"], runs["two"]))
        self.wait("the lines", lambda: self.text("#summary") == "8 lines")
        self.assertEqual(self.texts("#metric option"), ["loss"])

        def last():
            rows = self.driver.execute_script("return [...document.querySelectorAll('#legend li')].map((row) => [row.dataset.run, row.dataset.task, row.querySelector('.last').textContent])")
            return {(run, task): float(value) for run, task, value in rows}
        for name, run in runs.items():
            for task, series in points[name].items():
                self.assertAlmostEqual(last()[run, task], series[-1]["value"], places=3)
        # Half of the weight is on what was before: 2, 1, 2/3, 1/2, 2/5 of work[2].
        self.driver.execute_script("const s = document.getElementById('smooth'); s.value = 0.5; s.dispatchEvent(new Event('input'))")
        mean, weight = 0, 0
        for value in [2 / i for i in range(1, 6)]:
            mean, weight = mean / 2 + value / 2, weight / 2 + 0.5
        self.wait("smoothed", lambda: abs(last()[runs["one"], "work[2]"] - mean / weight) < 1e-3)
        path = self.all("#overlay .line")[0].get_attribute("d")
        self.click("#log-scale")
        self.wait("another scale", lambda: self.all("#overlay .line")[0].get_attribute("d") != path)
        self.click("#axis option[value=time]")
        self.assertIn("log", self.text("label[for=log-scale]").lower())
        self.click("#metric-runs input[data-run='%s']" % runs["two"])
        self.wait("one run", lambda: self.text("#summary").startswith("4 lines"))
        self.assertEqual(set(self.driver.execute_script("return [...document.querySelectorAll('#legend li')].map((row) => row.dataset.run)")), {runs["one"]})
        self.is_quiet()

    # ---- workers, services, what waits

    def test_workers_and_what_waits(self):
        self.write("asks.lua", ASKS)
        self.lead()
        self.start("run", "waits.lua", "--param", "path=" + self.path("gate"), "--name", "held")
        self.until_holds("first")
        self.start("run", "asks.lua", "--name", "asked")
        self.until_waits("ask", "asked")
        node = self.good("nodes", "--json").lines()[0]
        self.browse()
        self.visit("#/workers")
        self.wait("the worker", lambda: len(self.all("[data-worker]")) == 1)
        self.assertEqual(self.text(".cpus"), "%g of %g" % (node["cpus_used"], node["cpus"]))
        self.assertEqual(self.text("[data-worker] .state"), node["status"])
        self.assertEqual(self.texts(".holds a"), [task.split(" ")[1] for task in node["tasks"]])
        self.assertEqual(len(self.all("[data-gpu]")), len(node["gpus"]))
        self.visit("#/waiting")
        self.wait("what waits", lambda: self.text("#summary") == "1 task")
        self.assertEqual(self.texts(".virtual tbody td"), ["asked", "ask", "waiting", self.tasks("asked")["ask"]["waits_for"]])
        self.open("gate")
        self.good("signal", "asked", "approved")
        self.wait("nothing waits", lambda: self.text("#summary") == "Nothing waits.")
        self.visit("#/workers")
        self.wait("nothing runs", lambda: self.text(".tasks") == "none")
        self.kill(self.head)
        self.wait("no worker", lambda: "No process writes this state" in self.text("#summary"))
        self.assertEqual(self.all("[data-worker]"), [])

    def test_services_and_a_rollback(self):
        for factor in (2, 3):
            self.write("v%d.lua" % factor, SERVES.replace("FACTOR", str(factor)))
        self.lead()
        self.good("run", "v2.lua", "--name", "prod", "--detach")
        first = self.show("prod")["run"]
        self.good("run", "v3.lua", "--name", "prod", "--detach")
        self.until("the first one has ended", lambda: self.show(first)["status"] == "succeeded")
        (service,) = self.good("services", "--json").lines()
        self.browse()
        self.visit("#/services")
        self.wait("the service", lambda: len(self.all(".service-item")) == 1)
        self.assertEqual(self.all(".service-item")[0].get_attribute("data-version"), service["version"])
        self.assertEqual(self.text(".requests"), str(service["requests"]))
        self.assertEqual(self.text(".percent"), "%d%%" % service["percent"])
        self.assertEqual(self.text(".replicas"), str(len(service["replicas"])))
        self.assertEqual(self.texts(".service-item td")[:3], [service["replicas"][0]["name"], service["replicas"][0]["status"], str(service["replicas"][0]["pid"])])
        self.click("#rollback-0")
        self.assertIn("started by " + self.user(), self.text("dialog[open]"))
        self.click("#rollback-0-confirm")
        self.wait("the run that serves then", lambda: self.text("h1") == "prod" and self.text("#facts .state") == "serving")
        run = self.driver.current_url.split("/runs/")[1]
        self.assertNotIn(run, (first, service["version"]))
        self.assertEqual(self.show(run)["name"], "prod")
        self.click("#stop")
        self.click("#stop-confirm")
        self.wait("it has ended", lambda: self.text("#facts .state") == "succeeded")
        self.assertEqual(self.show(run)["status"], "succeeded")
        self.is_quiet()

    def test_durations_of_requests(self):
        self.write("v2.lua", SERVES.replace("FACTOR", "2"))
        self.lead()
        self.good("run", "v2.lua", "--name", "prod", "--detach")
        (service,) = self.good("services", "--json").lines()
        self.browse()
        self.visit("#/services")
        self.wait("the service", lambda: self.text(".histogram-note") == "No request has been answered yet.")
        for number in range(30):
            self.assertEqual(self.request(service["url"], number), 2 * number)
        self.wait("the histogram", lambda: self.text(".histogram .all") == "30 answered requests")
        counted = self.durations(service["url"], service["version"])

        def columns():
            columns = self.driver.execute_script("return [...document.querySelectorAll('.column')].map((each) => [each.dataset.limit, each.dataset.requests, each.innerText.trim()])")
            return {"%g" % (float(limit) / 1e3) if limit else "+Inf": (int(requests), text) for limit, requests, text in columns}
        shown = columns()
        self.assertEqual({limit: requests for limit, (requests, _) in shown.items() if requests}, {limit: requests for limit, requests in counted.items() if requests})
        self.assertEqual(sum(requests for requests, _ in shown.values()), 30)
        for requests, text in shown.values():
            self.assertEqual(text.split("\n")[0] == str(requests), requests > 0, text)
        # The same for who does not see the picture.
        label = self.all(".columns")[0].get_attribute("aria-label")
        self.assertEqual(sum(int(number) for number in re.findall(r"(\d+) (?:up to|longer)", label)), 30)
        (service,) = self.good("services", "--json").lines()
        self.assertEqual(self.text(".requests"), str(service["requests"]))
        for name in ("p50", "p99"):
            self.assertTrue(self.text(".number." + name).endswith(" ms"))
        self.good("stop", "prod")
        self.is_quiet()

    def test_gpus_are_measured(self):
        metrics = self.lead_with_gpus()
        self.browse()
        self.visit("#/workers")
        self.wait("the readings", lambda: self.text("[data-gpu='GPU-a'] .utilisation") == "87%")
        self.until("the worker measures too", lambda: 'flow_gpu_power_watts{gpu="0",uuid="GPU-a"}' in self.samples(metrics))
        measured = {name: number for name, number in self.samples(metrics).items() if 'uuid="GPU-a"' in name}
        labels = '{gpu="0",uuid="GPU-a"}'
        self.assertEqual(self.text("[data-gpu='GPU-a'] .utilisation"), "%g%%" % (100 * measured["flow_gpu_utilization_ratio" + labels]))
        self.assertEqual(self.text("[data-gpu='GPU-a'] .temperature"), "%g °C" % measured["flow_gpu_temperature_celsius" + labels])
        self.assertEqual(self.text("[data-gpu='GPU-a'] .power"), "%.0f W" % measured["flow_gpu_power_watts" + labels])
        self.assertEqual(self.text("[data-gpu='GPU-a'] .memory_used"), "%g GiB" % (measured["flow_gpu_memory_used_bytes" + labels] / 2**30))
        self.assertEqual([self.text("[data-gpu='GPU-b'] ." + each) for each in ("utilisation", "memory_used", "temperature", "power")], ["–", "0 B", "–", "–"])
        self.assertEqual(self.texts("[data-gpu='GPU-a'] .holds a"), ["train"])
        self.is_quiet()

    def test_a_run_and_a_task_are_retried(self):
        self.lead()
        self.exits(1, self.flow("run", "mixed.lua", "--name", "nightly", "--quiet"))
        run = self.show("nightly")["run"]
        self.browse()
        self.visit("#/runs/" + run)
        self.wait("the button", lambda: len(self.all("#retry")) == 1)
        self.click("#retry")
        self.press(Keys.ESCAPE)
        self.wait("the dialog is closed", lambda: not self.all("dialog[open]"))
        self.assertEqual(self.tasks("nightly")["work[3]"]["attempts"], 2)
        self.click("#retry")
        self.click("#retry-confirm")
        self.wait("four attempts", lambda: self.tasks("nightly")["work[3]"]["attempts"] == 4 and self.text("#facts .state") == "failed")
        self.visit("#/runs/%s/task/load" % run)
        self.wait("the button", lambda: len(self.all("#retry")) == 1)
        self.click("#retry")
        self.click("#retry-confirm")
        self.wait("another attempt", lambda: self.text("#attempt-count") == "2")
        self.until("it has ended", lambda: self.show("nightly")["status"] == "failed")
        self.kill(self.head)
        self.visit("#/runs/" + run)
        self.wait("the command", lambda: "flow retry %s --state %s" % (run, self.state) in self.text(".heading"))

    def test_a_task_with_its_log(self):
        self.flow("run", "mixed.lua", "--quiet")
        run = self.show()
        task = self.tasks()["work[3]"]
        self.browse()
        self.visit("#/runs/%s/task/work%%5B3%%5D" % run["run"])
        self.wait("the log", lambda: len(self.all("#log-lines li")) > 0)
        self.assertEqual((self.text("h1"), self.text("#facts .state"), self.text("#attempt-count")), ("work[3]", "failed", str(task["attempts"])))
        self.assertEqual(self.text("#error pre"), task["error"])
        self.assertEqual(self.text("#why"), self.good("why", "last", "work[3]").out.strip())
        self.assertEqual(len(self.all("#attempts tr")), task["attempts"])
        lines = self.flow("logs", "last", "work[3]", "--json").lines()
        self.assertEqual(self.texts("#log-lines .text"), [line["text"] for line in lines])
        self.click("#log-attempt option[value='2']")
        last = [line["text"] for line in lines if line["attempt"] == 2]
        self.wait("the attempt", lambda: self.texts("#log-lines .text") == last)
        self.all("#log-search")[0].send_keys("STEP 4")
        self.wait("the search", lambda: self.texts("#log-lines .text") == ["step 4 of part 3"])
        self.assertEqual(self.texts("#log-lines mark"), ["step 4"])
        self.assertIn("1 of 5 lines", self.text("#log-note"))
        plot = self.text(".plot p")
        self.assertIn("last 0.6 · best 0.6 · min 0.6 · max 3", plot)
        self.assertIn("5 points, step 1 to 5", plot)
        self.assertEqual(self.texts("#neighbours a"), ["load", "sum"])
        self.wait("the arguments", lambda: self.text("#arguments") == "[\n  3\n]")
        self.assertEqual(self.all("#task-result"), [])
        self.visit("#/runs/%s/task/work%%5B2%%5D" % run["run"])
        self.wait("the result", lambda: self.text("#task-result") == "4")
        # Text of a task is never markup.
        self.visit("#/runs/%s/task/tool" % run["run"])
        self.wait("the output", lambda: "<b>bold</b>" in self.texts("#log-lines .text"))
        self.assertEqual(self.all("#log-lines b"), [])
        self.is_quiet()

    def test_an_error_that_is_not_text(self):
        self.write("bytes.lua", BYTES)
        self.flow("run", "bytes.lua", "--quiet")
        run = self.show()
        self.assertIn("broken \uFFFD here", run["tasks"][0]["error"])
        self.browse()
        self.visit("#/runs/" + run["run"])
        self.wait("the failure", lambda: "broken \uFFFD here" in self.text("#failures li"))
        self.wait("the tasks", lambda: len(self.all(".virtual tbody a")) == 1)
        self.visit("#/runs/%s/task/bad" % run["run"])
        self.wait("the error", lambda: "broken \uFFFD here" in self.text("#error pre"))
        # The page takes any JSON value there.
        shown = self.driver.execute_async_script("""
            const end = arguments[0];
            import("/assets/format.js").then((m) => end([m.asText({ $bytes: "/w==" }), m.asText(null), m.groupOf({ $bytes: "a" })]))""")
        self.assertEqual(shown, ['{"$bytes":"/w=="}', "", '{"$bytes":"a"}'])
        self.is_quiet()

    def test_a_run_of_2000_tasks(self):
        self.good("run", "big.lua", "--quiet")
        run = self.show()
        self.browse()
        self.visit("#/runs/" + run["run"])
        self.wait("the tasks", lambda: self.text("#task-summary") == "2,000 tasks")
        self.assertEqual(counts_in(self.text("#counts")), {"succeeded": 2000})
        self.assertEqual(len(self.all(".spans .span")), 2000)
        self.assertLess(len(self.all(".virtual tbody tr")), 60, "only rows in view are elements")
        self.driver.execute_script("const list = document.querySelector('.list'); list.scrollTop = list.scrollHeight")
        self.wait("the last row", lambda: "work[2000]" in self.texts(".virtual tbody a"))
        self.all("#task-search")[0].send_keys("work[1234]")
        self.wait("one row", lambda: self.texts(".virtual tbody a") == ["work[1234]"])
        self.is_quiet()

    def test_a_run_with_a_name_for_each_task(self):
        self.write("names.lua", NAMES)
        self.good("run", "names.lua", "--quiet")
        run = self.show()
        self.assertEqual(len({task["name"].split("#")[0] for task in run["tasks"]}), 401)
        self.browse()
        self.visit("#/runs/" + run["run"])
        self.wait("the tasks", lambda: self.text("#task-summary").endswith(" tasks"))
        self.assertEqual(len(self.all("#groups tr")), 300)
        self.assertEqual(len(self.all("#task-group option")), 301, "with `all`")
        self.assertIn("first 300 of 401 names", self.text("#groups-note"))
        self.all("#task-search")[0].send_keys("step399")
        self.wait("the search", lambda: self.texts(".virtual tbody a") == ["step399"])
        self.visit("#/runs/%s/task/%s" % (run["run"], "first"))
        self.wait("what needs it", lambda: "and 300 more" in self.texts("#neighbours li"))
        self.is_quiet()

    # ---- live

    def test_a_run_is_followed_and_cancelled(self):
        self.browse()
        self.assertIn("There is no run yet", self.text(".empty-state"))
        process = self.start("run", "waits.lua", "--param", "path=" + self.path("gate"), "--name", "held")
        self.wait("the new run", lambda: self.texts("#runs a") == ["held"])
        self.wait("it runs", lambda: self.text("#runs .state") == "running")
        self.click("#runs a")
        self.wait("the task runs", lambda: counts_in(self.text("#counts")) == {"running": 1})
        self.wait("the button", lambda: len(self.all("#cancel")) == 1)
        self.click("#cancel")
        self.press(Keys.ESCAPE)
        self.wait("the dialog is closed", lambda: not self.all("dialog[open]"))
        self.assertEqual(self.show("held")["status"], "running")
        self.click("#cancel")
        self.click("#cancel-confirm")
        self.exits(1, self.end(process))
        self.wait("the page says so", lambda: self.text("#facts .state") == "cancelled")
        self.assertEqual(self.show("held")["status"], "cancelled")
        (action,) = self.show("held")["actions"]
        self.assertRegex(action["by"], r"^%s@127[.\d]+ \(page\)$" % self.user())
        self.wait("who asked", lambda: len(self.all("#actions li")) == 1)
        self.assertIn("cancel by %s at " % action["by"], self.text("#actions li"))
        self.assertEqual(self.all("#cancel"), [])
        self.is_quiet()

    def test_counts_kept_with_each_change_are_those_of_all_tasks(self):
        self.browse()
        wrong = self.driver.execute_async_script("""
            const end = arguments[0];
            import("/assets/tasks.js").then(({ taskCounts }) => {
            let seed = 7;
            const below = (n) => (seed = (seed * 16807) % 2147483647) % n;
            const task = () => {
              const status = ["ready", "running", "failed", "waiting", "succeeded"][below(5)];
              const attempts = below(4);
              return { group: "g" + below(3), status, cached: below(4) === 0, ignored: below(4) === 0, attempts, started: attempts ? 10 : null, finished: below(2) ? 10 + below(50) : null };
            };
            const counted = (tasks) => {
              const counts = taskCounts();
              tasks.forEach((each, place) => counts.set(place, undefined, each));
              return counts;
            };
            const shown = (counts, tasks) => [[...counts.byName(tasks, nodes)].map(([name, group]) => [name, ...["ready", "running", "failed", "waiting", "succeeded", "cached", "ignored", "retried", "tasks"].map((each) => group[each] || 0), group.durations]),
              counts.earlier, counts.placesOf("failed"), counts.placesOf("waiting")];
            const nodes = [{ name: "g1" }, { name: "g0" }, { name: "g2" }];
            const kept = taskCounts();
            const tasks = [];
            const wrong = [];
            for (let i = 0; i < 400; i++) {
              const place = below(tasks.length + 1) % 12;
              const next = place === tasks.length - 1 && below(3) === 0 ? undefined : task();
              kept.set(place, tasks[place], next);
              if (next) tasks[place] = next;
              else tasks.length--;
              const [is, should] = [shown(kept, tasks), shown(counted(tasks), tasks)].map((each) => JSON.stringify(each));
              if (is !== should) wrong.push([i, is, should]);
            }
            end(wrong);
            });""")
        self.assertEqual(wrong, [])
        self.is_quiet()

    def test_a_run_of_10000_tasks_is_followed(self):
        self.write("queue.lua", QUEUE)
        process = self.start("run", "queue.lua", "--param", "path=" + self.path("gate"), "--jobs", "1", "--quiet")
        self.until_holds("first")
        self.browse()
        self.visit("#/runs/" + self.show()["run"])
        self.wait("the tasks", lambda: self.text("#task-summary") == "10,001 tasks")
        self.assertEqual(counts_in(self.text("#counts")), {"running": 1, "ready": 10000})
        self.assertEqual(counts_in(self.text("[data-group=work] .counts .quiet")), {"ready": 10000})
        self.wait("the reason", lambda: "work[1]" in self.texts(".virtual tbody a"))
        titles = self.driver.execute_script("return [...document.querySelectorAll('.virtual tbody td > span[title]')].map((each) => each.title)")
        self.assertEqual(titles[:2], ["", self.tasks()["work[1]"]["waits_for"]])
        self.write("gate", "")
        self.wait("the end", lambda: self.text("#facts .state") == "succeeded")
        self.assertEqual(self.end(process).code, 0)
        self.wait("all counts", lambda: counts_in(self.text("#counts")) == {"succeeded": 10001})
        self.wait("the counts by task", lambda: [counts_in(each) for each in self.texts("#groups .counts .quiet")] == [{"succeeded": 1}, {"succeeded": 10000}])
        self.is_quiet()

    def test_nothing_of_an_interrupted_run_seems_to_go_on(self):
        process = self.start("run", "waits.lua", "--param", "path=" + self.path("gate"))
        self.until_holds("first")
        self.kill(process)
        run = self.show()
        self.assertEqual((run["status"], run["tasks"][0]["status"]), ("interrupted", "running"))
        self.browse()
        self.visit("#/runs/" + run["run"])
        self.wait("the task", lambda: len(self.all(".virtual tbody a")) == 1)
        self.assertEqual(self.text("#facts .state"), "interrupted")
        self.assertEqual(self.all("[data-since]"), [])
        self.assertIn("flow cancel %s --state %s" % (run["run"], self.state), self.text(".heading"), "no process would do it")
        words = self.driver.execute_async_script("""
            const end = arguments[0];
            import("/assets/format.js").then((m) => end(["plain-1", "", "it's on", "$HOME"].map(m.shellWord)))""")
        self.assertEqual(words, ["plain-1", "''", "'it'\\''s on'", "'$HOME'"])
        self.click(".virtual tbody a")
        self.wait("its page", lambda: self.text("h1") == "hold" and len(self.all("#attempts tr")) == 1)
        self.assertEqual(self.all("[data-since]"), [])
        self.is_quiet()

    def test_a_signal_is_sent(self):
        self.write("asks.lua", ASKS)
        process = self.start("run", "asks.lua", "--name", "asked")
        self.until_waits("ask")
        self.browse()
        self.visit("#/runs/" + self.runs()[0]["run"])
        self.wait("the task", lambda: "“approved”" in self.text("#waits"))
        self.click("#waits a")
        self.wait("the button", lambda: len(self.all("#signal")) == 1)
        self.click("#signal")
        self.wait("the value", lambda: self.focused() == "signal-value" or self.all("#signal-value")[0].is_displayed())
        self.all("#signal-value")[0].send_keys(Keys.CONTROL, "a")
        self.all("#signal-value")[0].send_keys('{"by":"ann"}', Keys.ENTER)
        self.exits(0, self.end(process))
        self.assertEqual(self.show("asked")["result"], {"by": "ann"})
        self.wait("the end", lambda: self.text("#facts .state") == "succeeded" and self.all("#signal") == [])
        self.wait("the result", lambda: '"by": "ann"' in self.text("#task-result"))
        self.is_quiet()

    def test_a_signal_with_backticks_in_its_name_is_sent(self):
        self.write("ticks.lua", r'''
local flow = require "flow"
local ask = flow.task("ask", function(ctx) return ctx:wait("go`: `now' until") end)
return flow.pipeline("ticks", {}, function() return ask() end)
''')
        process = self.start("run", "ticks.lua", "--name", "asked")
        self.until_waits("ask")
        self.browse()
        self.visit("#/runs/%s/task/ask" % self.runs()[0]["run"])
        self.wait("the button", lambda: len(self.all("#signal")) == 1)
        self.assertIn("“go`: `now' until”", self.text("#signal"))
        self.click("#signal")
        self.wait("the value", lambda: self.all("#signal-value")[0].is_displayed())
        self.all("#signal-value")[0].send_keys(Keys.ENTER)
        self.exits(0, self.end(process))
        self.assertEqual(self.show("asked")["result"], True)
        self.is_quiet()

    def test_the_metrics_of_an_active_run_are_followed(self):
        self.write("grows.lua", r'''
local flow = require "flow"
local work = flow.task("work", function(ctx)
  ctx:metric("loss", 2, 1)
  ctx:wait("go")
  ctx:metric("loss", 0.5, 2)
  return 1
end)
return flow.pipeline("grows", {}, function() return work() end)
''')
        process = self.start("run", "grows.lua", "--name", "grows")
        self.until_waits("work")
        self.browse()
        run = self.runs()[0]["run"]
        self.visit("#/runs/" + run)
        self.wait("the run", lambda: run in self.text("#facts"))
        self.driver.execute_script("window.fact = [...document.querySelectorAll('#facts .id')].find((each) => each.textContent === arguments[0]); getSelection().selectAllChildren(window.fact)", run)
        self.wait("the time proceeds", lambda: self.driver.execute_script("window.before ??= document.querySelector('#facts [data-since]').textContent; return document.querySelector('#facts [data-since]').textContent !== window.before"))
        self.good("signal", "grows", "other")
        self.wait("the action", lambda: len(self.all("#actions li")) > 0)
        self.assertEqual(self.driver.execute_script("return [window.fact.isConnected, getSelection().toString()]"), [True, run], "a selected text stays")
        self.visit("#/metrics?run=" + run)
        self.wait("its line", lambda: self.texts("#legend .last") == ["2"])
        self.good("signal", "grows", "go")
        self.exits(0, self.end(process))
        self.wait("the new point", lambda: self.texts("#legend .last") == ["0.5"])
        self.is_quiet()

    def test_extreme_metrics_are_drawn(self):
        self.write("extreme.lua", r'''
local flow = require "flow"
local work = flow.task("work", function(ctx)
  for i = 1, 3000 do ctx:metric("spiky", i == 1501 and 1000 or 1, i) end
  for i = 1, 3 do ctx:metric("diverged", i < 3 and i or 0 / 0, i) end
  for i = 1, 3 do ctx:metric("huge", i == 2 and -1.7e308 or 1.7e308, i) end
  return 1
end)
return flow.pipeline("extreme", {}, function() return work() end)
''')
        self.flow("run", "extreme.lua", "--quiet")
        run = self.show()["run"]
        self.browse()
        self.visit("#/runs/%s/task/work" % run)
        self.wait("the plots", lambda: len(self.all(".plot")) == 3)
        heights = self.driver.execute_script("""
            return Object.fromEntries([...document.querySelectorAll(".plot")].map((plot) => [plot.dataset.metric,
              [...plot.querySelector(".line").getAttribute("d").matchAll(/ (-?[\\d.]+|NaN)/g)].map((found) => Number(found[1]))]))""")
        self.assertEqual([min(heights["spiky"]), max(heights["spiky"])], [8, 112], "the spike is drawn")
        self.assertEqual(heights["huge"], [8, 112, 8])
        self.assertIn("last nan", self.text(".plot[data-metric=diverged]"))
        self.visit("#/metrics?run=%s&metric=huge" % run)
        self.wait("the line", lambda: len(self.all("#overlay .line")) == 1)
        self.assertNotIn("NaN", self.driver.execute_script("return document.querySelector('#overlay').innerHTML"))
        self.is_quiet()

    def test_a_log_is_followed(self):
        self.write("talks.lua", r'''
local flow = require "flow"
local talk = flow.shell("talk", { args = { "path" }, command = [[echo first; while [ ! -e {path} ]; do sleep 0.05; done; echo second]] })
return flow.pipeline("talks", { path = flow.param.string {} }, function(p) return talk { path = p.path }.stdout end)
''')
        self.browse()
        process = self.start("run", "talks.lua", "--param", "path=" + self.path("gate"))
        self.wait("the run", lambda: len(self.all("#runs a")) == 1)
        run = self.runs()[0]["run"]
        self.visit("#/runs/%s/task/talk" % run)
        self.wait("the first line", lambda: self.texts("#log-lines .text") == ["first"])
        self.open("gate")
        self.exits(0, self.end(process))
        self.wait("the end", lambda: self.text("#facts .state") == "succeeded")
        self.wait("the second line", lambda: self.texts("#log-lines .text") == ["first", "second"])
        self.is_quiet()

    def test_a_search_of_a_log_ends_the_former_request(self):
        self.flow("run", "mixed.lua", "--quiet")
        self.browse()
        self.visit("#/runs/%s/task/work%%5B3%%5D" % self.runs()[0]["run"])
        self.wait("the log", lambda: len(self.all("#log-lines li")) == 10)
        # Requests for the log get no answer until the test says so.
        self.driver.execute_script("""
            const real = window.fetch;
            window.asked = [];
            window.fetch = async (address, options) => {
              if (address.includes("/logs?") && !window.isOpen) {
                window.asked.push({ address, signal: options.signal });
                await new Promise((go, fail) => options.signal.addEventListener("abort", () => fail(options.signal.reason)));
              }
              return real(address, options);
            }""")
        search = self.all("#log-search")[0]
        search.send_keys("step 4")
        aborted = lambda: self.driver.execute_script("return window.asked.map((each) => each.signal.aborted)")  # noqa: E731
        self.wait("the search", lambda: aborted()[-1:] == [False])
        self.driver.execute_script("window.isOpen = true")
        search.send_keys(Keys.BACKSPACE, "5")
        self.wait("the next one", lambda: self.texts("#log-lines .text") == ["step 5 of part 3"] * 2)
        self.assertTrue(all(aborted()), aborted())
        self.assertNotIn("cannot be read", self.text("#log-note"))
        self.is_quiet()

    def watch_streams(self):
        """From the next view on, `streams` has the page's streams, and `isHidden` says whether the tab is hidden."""
        self.driver.execute_script("""
            const real = window.EventSource;
            window.streams = [];
            window.EventSource = class extends real {
              constructor(...words) { super(...words); window.streams.push(this); }
            };
            Object.defineProperty(document, "hidden", { get: () => window.isHidden === true });""")

    def streams(self):
        return self.driver.execute_script("return window.streams.map((each) => each.readyState)")

    def set_hidden(self, hidden):
        self.driver.execute_script("window.isHidden = arguments[0]; document.dispatchEvent(new Event('visibilitychange'))", hidden)

    def test_a_hidden_tab_has_no_stream(self):
        self.browse()
        self.watch_streams()
        self.visit("#/?q=mixed")
        self.wait("a stream", lambda: self.streams() == [1])
        self.set_hidden(True)
        self.assertEqual(self.streams(), [2], "it is closed")
        self.flow("run", "mixed.lua", "--quiet")
        self.set_hidden(False)
        self.wait("another stream", lambda: self.streams() == [2, 1])
        self.wait("what happened meanwhile", lambda: self.texts("#runs a") == ["mixed"])
        self.is_quiet()

    def test_the_page_is_live_again_after_a_refusal(self):
        self.browse()
        page = self.processes[-1]
        self.kill(page)
        self.wait("the end is seen", lambda: "is flow ui still running?" in self.text("#link"))
        self.open_page("--listen", "%s:%d" % (self.host, self.port))
        # A browser gives up after status 401.
        self.wait("the reason", lambda: "link has expired" in self.text("#link"))
        self.driver.execute_script("fetch(arguments[0])", "/?" + self.link.split("?")[1])
        self.wait("connected", lambda: self.text("#link").startswith("live"))
        self.flow("run", "mixed.lua", "--quiet")
        self.wait("the run", lambda: self.texts("#runs a") == ["mixed"])

    def test_an_address_that_encodes_nothing(self):
        self.browse()
        self.visit("#/runs/100%")
        self.wait("the view", lambda: self.text("h1") == "Not found")
        self.visit("#/")
        self.wait("the other view", lambda: self.text("h1") == "Runs")

    def test_a_late_answer_is_of_its_own_view(self):
        self.flow("run", "mixed.lua", "--name", "nightly", "--quiet")
        run = self.show()["run"]
        self.browse()
        self.watch_streams()
        self.visit("#/runs/" + run)
        self.wait("the run", lambda: self.text("h1") == "nightly" and self.streams() == [1])
        self.wait("the tasks", lambda: len(self.all(".virtual tbody a")) > 0)
        self.driver.execute_script("""
            const real = window.fetch;
            window.late = [];
            window.fetch = (address, options) => !address.startsWith(arguments[0]) ? real(address, options) :
              new Promise((go) => window.late.push(() => go(new Response('{"error":"gone"}', { status: 404 }))));""", "/api/runs/%s/tasks" % run)
        self.set_hidden(True)
        self.set_hidden(False)
        self.wait("a refresh", lambda: self.driver.execute_script("return window.late.length") == 1)
        self.visit("#/")
        self.wait("the other view", lambda: self.texts("#runs a") == ["nightly"])
        self.driver.execute_async_script("""
            const end = arguments[0];
            window.late[0]();
            requestAnimationFrame(() => requestAnimationFrame(() => end()));""")
        self.assertEqual((self.text("h1"), self.texts("#runs a")), ("Runs", ["nightly"]))
        self.is_quiet()

    # ---- for everyone

    def test_the_keyboard_reaches_what_the_mouse_does(self):
        self.flow("run", "mixed.lua", "--name", "nightly", "--quiet")
        run = self.show()["run"]
        self.browse()
        self.wait("the row", lambda: len(self.all("#runs a")) == 1)
        self.press(Keys.TAB)
        self.assertEqual(self.focused(), "#main", "the first stop skips the header")
        self.tab_to("search")
        self.tab_to("status")
        self.tab_to("#/runs/" + run)
        self.press(Keys.ENTER)
        self.wait("the run", lambda: len(self.all(".virtual tbody a")) > 0)
        self.wait("the title is focused", lambda: self.focused() == "nightly")
        self.tab_to("work")
        self.press(Keys.ENTER)
        self.wait("only that task", lambda: len(self.all(".virtual tbody a")) == 4)
        self.assertEqual(self.focused(), "task-search")
        self.tab_to("#/runs/%s/task/work%%5B3%%5D" % run)
        self.press(Keys.ENTER)
        self.wait("the task", lambda: self.text("h1") == "work[3]" and len(self.all("#log-lines li")) > 0)
        self.tab_to("log-search")
        self.is_quiet()

    def test_controls_and_regions_have_names(self):
        self.flow("run", "mixed.lua", "--quiet")
        run = self.show()["run"]
        self.browse()
        for path in ("#/", "#/runs/" + run, "#/runs/%s/task/tool" % run, "#/metrics?run=" + run, "#/waiting", "#/workers", "#/services", "#/cost"):
            self.visit(path)
            self.wait("the view", self.is_drawn)
            nameless = self.driver.execute_script("""
                const named = (e) => e.getAttribute("aria-label") || (e.labels && e.labels.length > 0) || e.textContent.trim() !== "" ||
                  (e.getAttribute("aria-labelledby") && document.getElementById(e.getAttribute("aria-labelledby")));
                return [...document.querySelectorAll("a, button, input, select, section, [role=region], [role=img], table")]
                  .filter((e) => !named(e)).map((e) => e.outerHTML)""")
            self.assertEqual(nameless, [], path)
            ids = self.driver.execute_script("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
            self.assertEqual(len(ids), len(set(ids)), path)
            self.assertEqual(len(self.all("h1")), 1)

    def is_drawn(self):
        return self.text("h1") != "" and (len(self.all("main tbody tr")) > 0 or self.text("#summary") != "" or self.text("h1") == "Not found")

    def test_axe_finds_nothing_to_correct(self):
        axe, why = axe_script()
        if axe is None:
            self.skipTest(why)
        self.lead()
        self.write("v2.lua", SERVES.replace("FACTOR", "2"))
        self.good("run", "v2.lua", "--name", "prod", "--detach")
        self.request(self.good("services", "--json").lines()[0]["url"], 1)
        self.start("run", "waits.lua", "--param", "path=" + self.path("gate"), "--name", "held")
        self.until_holds("first")
        self.write("asks.lua", ASKS)
        self.start("run", "asks.lua", "--name", "asked")
        self.until_waits("ask", "asked")
        self.flow("run", "mixed.lua", "--quiet")
        self.good("run", "big.lua", "--quiet")
        big, mixed = [run["run"] for run in reversed(self.runs())][:2]
        self.browse()
        self.driver.set_script_timeout(300)  # axe takes more than the default of 30 s where the machine is busy
        for scheme in ("light", "dark"):
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            for path in ("#/", "#/runs/" + mixed, "#/runs/" + big, "#/runs/%s/task/work%%5B3%%5D" % mixed, "#/runs/nothing", "#/waiting", "#/workers", "#/services",
                         "#/metrics?run=" + mixed, "#/cost?run=%s&run=%s" % (mixed, big)):
                self.visit(path)
                self.wait("the view", self.is_drawn)
                if path.endswith(mixed):
                    self.driver.execute_script("document.querySelectorAll('#cost-panel').forEach((each) => (each.open = true))")
                    self.wait("the cost", lambda: not self.all("#cost-panel") or len(self.all("#cost .costs")) == 1)
                self.driver.execute_script(axe)
                found = self.driver.execute_async_script("const end = arguments[0]; axe.run().then((r) => end(r.violations.map((v) => [v.id, v.nodes[0].html])))")
                self.assertEqual(found, [], (scheme, path))

    def test_a_phone_in_the_dark(self):
        self.flow("run", "mixed.lua", "--quiet")
        run = self.show()["run"]
        self.browse(width=390, dark=True)
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True})
        for path in ("#/", "#/runs/" + run, "#/runs/%s/task/work%%5B3%%5D" % run, "#/metrics?run=" + run, "#/waiting", "#/workers", "#/services", "#/cost?run=" + run):
            self.visit(path)
            self.wait("the view", self.is_drawn)
            self.assertLessEqual(self.driver.execute_script("return document.documentElement.scrollWidth - innerWidth"), 0, path)
        self.write("long.lua", LONG_NAMES)
        self.flow("run", "long.lua", "--quiet", "--name", "n" * 300)
        run = self.show()["run"]
        for path in ("#/", "#/runs/" + run, "#/runs/%s/task/%s" % (run, "t" * 100), "#/metrics?run=" + run, "#/cost", "#/cost?run=" + run):
            self.visit(path)
            self.wait("the view", self.is_drawn)
            self.assertLessEqual(self.driver.execute_script("return document.documentElement.scrollWidth - innerWidth"), 0, path)
        ground, text = self.driver.execute_script("const s = getComputedStyle(document.documentElement); return [s.backgroundColor, s.color]")
        self.assertLess(int(re.search(r"\d+", ground)[0]), 60)
        self.assertGreater(int(re.search(r"\d+", text)[0]), 180)
        self.is_quiet()


if __name__ == "__main__":
    if None in browser.programs():
        print("skipped: chromium and chromium-driver are not installed")
        sys.exit(77)
    main()
