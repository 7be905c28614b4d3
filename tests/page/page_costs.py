#!/usr/bin/env python3
"""The costs in the page of flow ui, in a headless Chromium: they are those of `flow cost --json`. Skipped (77) without Debian's chromium,
chromium-driver and python3-selenium.

usage: page_costs.py --flow BIN [TEST...]
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from page_browser import Browsing  # noqa: E402, before selenium: it may start again with Debian's Python
import browser  # noqa: E402
from page_place import PRICES  # noqa: E402
from place import main  # noqa: E402

# One GPU is free while `narrow` runs, first without a queue and then while `wide` waits for both.
GPUS = r'''
local flow = require "flow"
local narrow = flow.shell("narrow", { gpus = 1, command = "sleep 0.6" })
local nap = flow.shell("nap", { command = "sleep 0.2" })
local wide = flow.shell("wide", { gpus = 2, command = "true" })
return flow.pipeline("gpus", function() return { narrow().stdout, wide():after(nap()).stdout } end)
'''


class Costs(Browsing):
    def is_shown(self, text, number, what):
        """A number of --json as the page rounds it."""
        if number is None:
            return self.assertEqual(text, "–", what)
        self.assertAlmostEqual(float(text.split(" ")[0].replace(",", "")), number, delta=0.0051 if number >= 1 else 6e-4 * number, msg=what)

    def check_cost(self, scope, report):
        """What `scope` shows are the numbers of `flow cost --json`."""
        hours = (("cpus", "cpu_hours"), ("memory", "memory_gb_hours"), ("gpus", "gpu_hours"))
        rows = [(row["name"] or "–", row) for row in report["rows"]]
        names = self.driver.execute_script("return [...document.querySelectorAll(arguments[0])].map((row) => row.dataset.name)", scope + " .costs tr[data-name]")
        self.assertEqual(names, [name for name, _ in rows])
        for name, row in rows + ([("", report["total"])] if len(rows) > 1 else []):
            line = scope + " .costs " + ("tr[data-name='%s']" % name if name else ".total")
            self.assertEqual((self.text(line + " .tasks"), self.text(line + " .attempts")), (str(row["tasks"]), str(row["attempts"])))
            for style, field in hours:
                self.is_shown(self.text(line + " .%s .held" % style), row[field]["held"], (name, field))
                self.is_shown(self.text(line + " .%s .used" % style), row[field]["used"], (name, field))
            if report["currency"]:
                self.is_shown(self.text(line + " .amount"), row["amount"], name)
            else:
                self.assertEqual(self.all(line + " .amount"), [])
        total = report["total"]
        self.is_shown(self.text(scope + " .cpus-held"), total["cpu_hours"]["held"], "held")
        self.is_shown(self.text(scope + " .cpus-used"), total["cpu_hours"]["used"], "used")
        self.is_shown(self.text(scope + " .gpus-held"), total["gpu_hours"]["held"], "held")
        if total["cpu_hours"]["used"] is not None:
            self.is_shown(self.text(scope + " .cpus-idle"), max(0, total["cpu_hours"]["held"] - total["cpu_hours"]["used"]), "idle")
        for cause in ("staging", "rank", "fragmentation", "queue_empty"):
            hours = total["gpu_hours"]["idle"][cause]
            shown = self.all(scope + " .idle-" + cause.replace("_", "-"))
            self.assertEqual(len(shown), 1 if hours else 0, cause)
            if hours:
                self.is_shown(shown[0].text, hours, cause)
        self.assertEqual(len(self.all(scope + " .egress")), 1 if total["egress_gb"] else 0)
        parts = [part for part in ("failed", "lost", "stopped", "saved") if total[part]["attempts"] > 0]
        self.assertEqual(self.driver.execute_script("return [...document.querySelectorAll(arguments[0])].map((row) => row.dataset.part)", scope + " .losses [data-part]"), parts)
        for part in parts:
            line = scope + " .losses [data-part=%s]" % part
            self.assertEqual(self.text(line + " .attempts"), str(total[part]["attempts"]))
            self.is_shown(self.text(line + " td.cpus"), total[part]["cpu_hours"], part)
            if report["currency"]:
                self.is_shown(self.text(line + " .amount"), total[part]["amount"], part)
        return total

    def cost(self, *words):
        return self.good("cost", *words, "--json").lines()[0]

    def test_what_runs_cost(self):
        self.write("flow.toml", PRICES)
        self.flow("run", "mixed.lua", "--name", "one", "--budget", "50 USD", "--quiet")
        self.flow("run", "mixed.lua", "--name", "two", "--quiet")
        one, two = self.show("one")["run"], self.show("two")["run"]
        self.browse()
        self.visit("#/cost")
        self.wait("the newest run", lambda: self.driver.execute_script("return [...document.querySelectorAll('.cost-item')].map((each) => each.dataset.run)") == [two])
        total = self.check_cost("[data-run='%s'].cost-item" % two, self.cost("two"))
        self.assertEqual((total["cached"] > 0, total["failed"]["attempts"] > 0, total["saved"]["attempts"] > 0), (True, True, True))
        self.is_shown(self.text(".cost"), total["amount"], "the cost")
        self.assertTrue(self.text(".cost").endswith(" USD"))
        self.assertEqual(self.all(".budget"), [])
        self.click("#cost-runs input[data-run='%s']" % one)
        self.wait("both", lambda: len(self.all(".cost-item")) == 2)
        totals = [self.check_cost("[data-run='%s'].cost-item" % run, self.cost(run)) for run in (one, two)]
        for run, each in zip((one, two), totals):
            self.is_shown(self.text("#totals [data-run='%s'] .amount" % run), each["amount"], run)
            self.is_shown(self.text("#totals [data-run='%s'] td.cpus" % run), each["cpu_hours"]["held"], run)
        self.is_shown(self.text("#totals .total .amount"), sum(each["amount"] for each in totals), "the sum")
        budget = self.show("one")["budget"]
        said = self.text("[data-run='%s'] .budget .number" % one)
        self.is_shown(said, budget["used"], "the budget")
        self.assertTrue(said.endswith(" of 50.00 USD"), said)
        for by in ("user", "queue", "gpu"):
            self.click("#cost-by option[value=%s]" % by)
            label = {"user": "User", "queue": "Queue", "gpu": "GPUs"}[by]
            self.wait("another grouping", lambda: self.texts(".cost-item .costs th:first-child")[:1] == [label])
            self.check_cost("[data-run='%s'].cost-item" % one, self.cost("one", "--by", by))
        self.assertIn("by=gpu", self.driver.current_url)
        self.click("#cost-by option[value=task]")
        self.click("#cost-period option[value='7d']")
        self.wait("the period", lambda: self.text("#summary") == "2 runs, started in the last 7 days")
        self.check_cost(".cost-item", self.cost("--since", "7d"))
        self.assertFalse(self.all("#cost-runs")[0].is_displayed())
        self.driver.refresh()
        self.wait("the same again", lambda: self.text("#summary") == "2 runs, started in the last 7 days")
        # The page of a run has it too.
        self.visit("#/runs/" + one)
        self.wait("the run", lambda: self.text("h1") == "one" and len(self.all("#cost-panel")) == 1)
        self.assertEqual(self.all("#cost .costs"), [], "it is read when it is opened")
        self.click("#cost-panel summary")
        self.wait("its cost", lambda: len(self.all("#cost .costs")) == 1)
        self.check_cost("#cost", self.cost("one"))
        self.is_quiet()

    def test_costs_without_prices_are_hours(self):
        self.flow("run", "mixed.lua", "--quiet")
        self.browse()
        self.visit("#/cost")
        self.wait("the run", lambda: len(self.all(".cost-item")) == 1)
        self.check_cost(".cost-item", self.cost())
        self.assertIn("No prices are configured", self.text(".no-prices"))
        self.assertIn("[prices] to flow.toml", self.text(".no-prices"))
        self.write("flow.toml", PRICES)
        self.driver.refresh()
        self.wait("amounts", lambda: len(self.all(".cost-item .amount")) > 0)
        self.check_cost(".cost-item", self.cost())
        self.assertEqual(self.all(".no-prices"), [])
        self.write("flow.toml", "[prices]\ncpu_hour = 1\n")
        self.driver.get_log("browser")
        self.driver.refresh()
        self.wait("what is wrong", lambda: "flow.toml" in self.text("#costs .bad"))

    def test_why_gpus_were_idle(self):
        library = os.environ.get("FLOW_TEST_NVML")
        if not library:
            self.skipTest("FLOW_TEST_NVML names no replacement for the driver's library")
        self.env.update(FLOW_NVML_LIB=library, FLOW_FAKE_NVML=self.path("machine"))
        self.env.pop("CUDA_VISIBLE_DEVICES", None)
        self.write("machine", "gpu GPU-a 81920 A\ngpu GPU-b 81920 A\n")
        self.write("gpus.lua", GPUS)
        self.good("run", "gpus.lua", "--jobs", "2", "--quiet")
        self.browse()
        self.visit("#/cost")
        self.wait("the run", lambda: len(self.all(".cost-item")) == 1)
        idle = self.check_cost(".cost-item", self.cost())["gpu_hours"]["idle"]
        self.assertTrue(idle["queue_empty"] > 0 and idle["fragmentation"] > 0, idle)
        self.is_quiet()

    def test_the_cost_of_a_run_grows(self):
        self.browse()
        self.visit("#/cost")
        self.wait("nothing yet", lambda: "There is no run yet" in self.text("#cost-runs"))
        process = self.start("run", "waits.lua", "--param", "path=" + self.path("gate"), "--name", "held")
        held = lambda: float(self.text(".cpus-held") or 0)  # noqa: E731
        self.wait("its cost", lambda: held() > 0)
        before = held()
        self.wait("more of it", lambda: held() > before)
        self.open("gate")
        self.exits(0, self.end(process))
        self.wait("its end", lambda: self.text(".cost-item .state") == "succeeded")
        self.check_cost(".cost-item", self.cost())
        self.is_quiet()

    def test_a_resumed_run_has_its_new_cost(self):
        self.write("again.lua", r'''
local flow = require "flow"
local fail = flow.shell("fail", { args = { "path" }, command = [[test -e {path}]] })
return flow.pipeline("again", { path = flow.param.string {} }, function(p) return fail { path = p.path }.stdout end)
''')
        self.flow("run", "again.lua", "--param", "path=" + self.path("gate"), "--quiet")
        run = self.show()["run"]
        self.browse()
        self.visit("#/cost?run=" + run)
        self.wait("its first end", lambda: self.text(".cost-item .state") == "failed")
        self.open("gate")
        self.exits(0, self.flow("resume", run, "--quiet"))
        self.wait("its second end", lambda: self.text(".cost-item .state") == "succeeded")
        self.check_cost(".cost-item", self.cost())
        self.is_quiet()


if __name__ == "__main__":
    if None in browser.programs():
        print("skipped: chromium and chromium-driver are not installed")
        sys.exit(77)
    main()
