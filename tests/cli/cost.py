#!/usr/bin/env python3
"""flow cost and budgets: figures and amounts, failed and lost work, what the cache saved; when a budget stops a run.

usage: cost.py --flow BIN [TEST...]
"""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

SCRIPT = r'''
local flow = require "flow"
local nap = flow.shell("nap", { args = { "s" }, memory = "100MB", outputs = { out = "out" }, cpus = 1, retries = 1,
  command = [[sleep {s}; echo done > {outputs.out}]] })
local flaky = flow.shell("flaky", { outputs = { out = "out" }, retries = { max = 1, backoff = "1ms" },
  command = [[sleep 0.3; if test ! -e FOLDER/failed; then touch FOLDER/failed; exit 1; fi; echo > {outputs.out}]] })
'''
PRICES = '[prices]\ncurrency = "USD"\ncpu_hour = 3600\nmemory_gb_hour = 36000\n'  # 1 USD per CPU-second, 10 per GB-second


class Costs(Place):
    def script(self, body):
        self.write("pipeline.lua", SCRIPT.replace("FOLDER", self.folder) +
                   'return flow.pipeline("costs", {}, function(p)\n%s\nend)\n' % body)

    def toml(self, text, name="flow.toml"):
        self.write(name, text)

    def cost(self, *words):
        return self.good("cost", *words, "--json").lines()[0]

    # ---- flow cost

    def test_amounts_are_prices_times_what_was_held(self):
        self.script('return nap("1")')
        self.toml(PRICES)
        self.good("run", ".")
        report = self.cost()
        task = self.tasks()["nap"]
        held_h = task["duration_s"] / 3600
        row, = report["rows"]
        self.assertEqual((report["currency"], report["by"], row["name"], row["attempts"]), ("USD", "task", "nap", 1))
        self.assertAlmostEqual(row["cpu_hours"]["held"], held_h, 8)
        self.assertAlmostEqual(row["cpu_hours"]["asked"], held_h, 8)
        self.assertAlmostEqual(row["memory_gb_hours"]["held"], held_h / 10, 8)
        self.assertAlmostEqual(row["cpu_hours"]["amount"], task["duration_s"], 4)
        self.assertAlmostEqual(row["memory_gb_hours"]["amount"], task["duration_s"], 4)
        self.assertAlmostEqual(row["amount"], 2 * task["duration_s"], 4)
        self.assertLess(row["cpu_hours"]["used"], held_h / 2)  # it sleeps
        self.assertEqual((row["gpu_hours"]["held"], row["gpu_hours"]["amount"], row["energy_j"], row["egress_gb"]),
                         (0, 0, None, 0))
        text = self.good("cost").out
        self.assertIn("USD", text)
        self.assertIn("total", text)

    def test_without_prices_hours_are_shown_and_amounts_are_null(self):
        self.script('return nap("0.1")')
        self.good("run", ".")
        row, = self.cost()["rows"]
        self.assertGreater(row["cpu_hours"]["held"], 0)
        self.assertIsNone(row["amount"])
        self.assertIsNone(row["cpu_hours"]["amount"])
        self.assertIn("no prices: add [prices]", self.good("cost").out)
        self.toml(PRICES)  # a run without prices is charged by those of today
        self.assertGreater(self.cost()["rows"][0]["amount"], 0)

    def test_a_run_keeps_its_prices_also_those_of_an_included_file(self):
        self.script('return nap("0.1")')
        self.toml('[prices]\ncurrency = "USD"\nmemory_gb_hour = 0\ninclude = "prices.toml"\n')
        self.toml("cpu_hour = 3600\n", "prices.toml")
        self.good("run", ".")
        amount = self.cost()["total"]["amount"]
        self.assertAlmostEqual(amount, self.tasks()["nap"]["duration_s"], 4)
        self.toml("cpu_hour = 7200\n", "prices.toml")
        self.assertEqual(self.cost()["total"]["amount"], amount)

    def test_failed_attempts_and_cached_results(self):
        self.script('return flaky()')
        self.toml(PRICES)
        self.good("run", ".")
        row, = self.cost()["rows"]
        self.assertEqual((row["attempts"], row["failed"]["attempts"]), (2, 1))
        self.assertGreater(row["failed"]["amount"], 0.25)
        self.assertGreater(row["amount"], 2 * 0.25)
        self.assertLess(row["failed"]["amount"], row["amount"])
        self.good("run", ".")
        cached = self.cost()["rows"][0]
        self.assertEqual((cached["cached"], cached["amount"]), (1, 0))
        self.assertAlmostEqual(cached["saved"]["amount"], row["amount"], 6)
        self.assertIn("saved by the cache", self.good("cost").out)
        both = self.cost("--since", "1h")
        self.assertEqual((len(both["runs"]), both["total"]["attempts"]), (2, 2))
        self.assertAlmostEqual(both["total"]["amount"], row["amount"], 6)

    def test_reports_by_user_queue_and_gpu(self):
        self.script('return nap("0.1")')
        self.good("run", ".")
        self.assertEqual(self.cost("--by", "queue")["rows"][0]["name"], "default")
        self.assertIsNone(self.cost("--by", "gpu")["rows"][0]["name"])
        self.assertTrue(self.cost("--by", "user")["rows"][0]["name"])
        self.exits(2, self.flow("cost", "--by", "color"), "--by")
        self.exits(2, self.flow("cost", "last", "--since", "1h"), "--since")
        self.exits(2, self.flow("cost", "nothing"), "nothing")

    # ---- budgets

    def test_bad_budgets_are_exit_2_before_anything_runs(self):
        self.script('return nap("0.1")')
        self.exits(2, self.flow("run", ".", "--budget", "50 USD"), "--budget", "needs prices")
        self.toml(PRICES)
        self.exits(2, self.flow("run", ".", "--budget", "fifty"), "--budget", "`fifty` is not an amount of money")
        self.exits(2, self.flow("run", ".", "--budget", "50 EUR"), "the budget is in EUR", "in USD")
        self.toml('[prices]\ncurrency = "USD"\ncpu_hour = 1\n')
        self.exits(2, self.flow("run", ".", "--budget", "50 USD"), "`nap`", "add `memory_gb_hour` to [prices]")
        self.assertEqual(self.good("ls").out, "")

    def test_a_budget_stops_the_run_and_a_larger_one_continues_it(self):
        self.script('return nap("60")')
        self.toml('[prices]\ncurrency = "USD"\ncpu_hour = 3600\nmemory_gb_hour = 0\n[defaults]\nbudget = "2 USD"\n')
        done = self.exits(3, self.flow("run", ".", "--grace", "1s"), "of its budget")
        self.assertIn("of 2.00 USD", done.err)
        run = self.show()
        self.assertEqual((run["status"], run["budget"]["is_spent"], run["budget"]["limit"]), ("interrupted", True, 2))
        self.assertGreaterEqual(run["budget"]["used"], 2)
        self.assertIn("of 2.00 USD, spent", self.good("show").out)
        self.assertIn("of its budget", self.good("why").out)
        stopped = self.cost()["total"]["stopped"]
        self.assertAlmostEqual(stopped["amount"], run["budget"]["used"], 4)  # the overshoot is in both
        self.exits(3, self.flow("resume"), "of its budget")  # the same budget suffices for nothing
        self.exits(2, self.flow("resume", "--budget", "5 EUR"), "in EUR")
        self.exits(3, self.flow("resume", "--budget", "%d USD" % (run["budget"]["used"] + 2), "--grace", "1s"))
        again = self.show()["budget"]
        self.assertGreater(again["used"], again["limit"] - 0.01)

    def test_a_run_that_needs_less_than_its_budget_succeeds(self):
        self.script('return nap("0.2")')
        self.toml(PRICES)
        self.good("run", ".", "--budget", "500 USD")
        budget = self.show()["budget"]
        self.assertFalse(budget["is_spent"])
        self.assertAlmostEqual(budget["used"], self.cost()["total"]["amount"], 4)

    def test_what_was_spent_survives_kill_9(self):
        self.script('return { nap("0.5"), nap("61") }')
        self.toml('[prices]\ncurrency = "USD"\ncpu_hour = 3600\nmemory_gb_hour = 0\n')
        running = self.start("run", ".", "--budget", "5 USD", "--jobs", "2")
        def is_half_done():
            done = self.flow("show", "--json")
            return done.code == 0 and json.loads(done.out)["counts"]["succeeded"] == 1
        self.until("one of the tasks succeeds", is_half_done)
        self.kill(running)
        before = self.show()["budget"]["used"]
        self.assertGreaterEqual(before, 0.5)
        self.exits(3, self.flow("resume", "--grace", "1s"), "of its budget")
        budget = self.show()["budget"]
        self.assertTrue(budget["is_spent"])
        self.assertGreaterEqual(budget["used"], before)
        self.assertGreater(self.cost()["total"]["lost"]["amount"], 0)


if __name__ == "__main__":
    main()
