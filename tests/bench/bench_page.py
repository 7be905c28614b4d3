#!/usr/bin/env python3
"""How fast the page of flow ui shows a large run, and how far it is behind a run that goes on. Prints figures and asserts none.

usage: bench_page.py --flow BIN [--tasks N...]

"shown": from the change of the address until the list of tasks has its rows. "answer": the page's request for all tasks alone.
"behind": from the end of the run until the page says that it has succeeded. "stale": how long before a page's counts are replaced the
first task ended that they lack. "alone": the same run without a page, before and after it. "wait": how long the reasons of a run take of
which one task runs and all others are ready: those of `flow show --json` and of `flow why`, and the page's request for all tasks, first
and again when nothing has changed.
"""
import argparse
import bisect
import datetime
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "page"))
from page_place import BIG, QUEUE  # noqa: E402
from browser import programs  # noqa: E402
from page_views import Views  # noqa: E402
from place import OPTIONS  # noqa: E402

TIMES = 3
LONG_TASK = """
window.longest = 0;
new PerformanceObserver((list) => list.getEntries().forEach((each) => (window.longest = Math.max(window.longest, each.duration)))).observe({ type: "longtask", buffered: false });
"""


# The number of tasks that the page says have succeeded, with the time when it changes.
OBSERVE = """
window.seen = [];
const look = () => {
  const counts = document.querySelector("#counts");
  const found = counts && /([\\d,]+) succeeded/.exec(counts.textContent);
  const number = found ? Number(found[1].replaceAll(",", "")) : 0;
  if (window.seen.length === 0 || window.seen[window.seen.length - 1][1] !== number) window.seen.push([Date.now(), number]);
};
new MutationObserver(look).observe(document.querySelector("#facts"), { childList: true, subtree: true, characterData: true });
look();
"""


def milliseconds_of(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000


def duration_of(row):
    """Milliseconds from the first attempt to the last end: without the time in which the script makes its graph."""
    tasks = [each for each in row["tasks"] if each["started"] and each["finished"]]
    return max(milliseconds_of(each["finished"]) for each in tasks) - min(milliseconds_of(each["started"]) for each in tasks)


def staleness(seen, ends):
    """`seen`: [time, number] as shown. `ends`: when tasks ended, sorted. Milliseconds for each change."""
    stale = []
    for (_, number), (until, _) in zip(seen, seen[1:]):
        if number < len(ends):
            stale.append(until - ends[number])
    return stale


class Bench(Views):
    def runTest(self):
        pass

    def milliseconds(self, script, *words):
        return self.driver.execute_async_script(script, *words)

    def shown(self, run, tasks):
        """Milliseconds until the rows are there, and the longest time in which the page did not react."""
        self.visit("#/")
        self.wait("the runs", lambda: self.text("h1") == "Runs")
        took = self.milliseconds("""
            const [hash, wanted, end] = arguments;
            const begin = performance.now();
            location.hash = hash;
            const look = () => {
              const summary = document.querySelector("#task-summary");
              if (summary && summary.textContent.startsWith(wanted) && document.querySelector(".virtual tbody a")) end(performance.now() - begin);
              else requestAnimationFrame(look);
            };
            look();""", "#/runs/" + run, "{:,} task".format(tasks))
        return took

    def finished(self, tasks):
        self.good("run", "big.lua", "--param", "n=%d" % tasks, "--quiet")
        run = self.show_row()["run"]
        took = [self.shown(run, tasks) for _ in range(TIMES)]
        answer = self.milliseconds("""
            const [path, end] = arguments;
            const begin = performance.now();
            fetch(path).then((answer) => answer.text()).then((text) => end([performance.now() - begin, text.length]));""", "/api/runs/%s/tasks" % run)
        print("%7d tasks: shown in %s ms (median %d); answer %d ms, %.1f MB" % (
            tasks, ", ".join("%d" % each for each in took), statistics.median(took), answer[0], answer[1] / 1e6), flush=True)

    def show_row(self):
        return self.runs()[-1]

    def alone(self, tasks):
        """Milliseconds of a run that no page shows."""
        address = self.driver.current_url
        self.driver.get("about:blank")
        self.good("run", "big.lua", "--param", "n=%d" % tasks, "--quiet", "--fresh")
        self.driver.get(address)
        return duration_of(self.show(self.show_row()["run"]))

    def followed(self, tasks):
        before_ms = self.alone(tasks)
        self.visit("#/")
        before = len(self.runs())
        process = self.start("run", "big.lua", "--param", "n=%d" % tasks, "--quiet", "--fresh")
        self.until("the run", lambda: len(self.runs()) > before)
        run = self.show_row()["run"]
        self.visit("#/runs/" + run)
        self.wait("the run's page", lambda: self.driver.execute_script('return document.querySelector("#facts .state") !== null'))
        self.driver.execute_script(LONG_TASK + OBSERVE)
        process.wait()
        ended = time.monotonic()
        self.wait("the end", lambda: self.text("#facts .state") == "succeeded")
        behind = time.monotonic() - ended
        row = self.show(run)
        took_ms = duration_of(row)
        longest, seen = self.driver.execute_script("return [window.longest, window.seen]")
        ends = sorted(milliseconds_of(each["finished"]) for each in row["tasks"] if each["finished"])
        stale = staleness(seen, ends) or [0]
        after_ms = self.alone(tasks)
        print("%7d tasks at %d/s: behind at the end %.1f s" % (tasks, tasks * 1000 / took_ms, behind), flush=True)
        print("%7d tasks: stale by at most %.1f s, median %.1f s, in %d changes" % (tasks, max(stale) / 1000, statistics.median(stale) / 1000, len(stale)), flush=True)
        print("%7d tasks: the page stood still for at most %d ms" % (tasks, longest), flush=True)
        print("%7d tasks: the run took %.2f s, alone %.2f and %.2f s" % (tasks, took_ms / 1000, before_ms / 1000, after_ms / 1000), flush=True)

    def waiting(self, tasks):
        def seconds(act):
            begin = time.monotonic()
            act()
            return time.monotonic() - begin
        gate = "gate%d" % tasks
        process = self.start("run", "queue.lua", "--param", "n=%d" % tasks, "--param", "path=" + self.path(gate), "--jobs", "1", "--quiet")
        self.until("a task runs", lambda: os.path.exists(self.path(gate + ".started")))
        run = self.show_row()["run"]
        shown, why = seconds(lambda: self.show(run)), seconds(lambda: self.good("why", run))
        first, again = self.driver.execute_async_script("""
            const [path, end] = arguments;
            const milliseconds = async (act) => {
              const begin = performance.now();
              await act();
              return performance.now() - begin;
            };
            let answer = null;
            const read = (query) => async () => (answer = await (await fetch(path + query)).json());
            (async () => {
              const first = await milliseconds(read(""));
              end([first, await milliseconds(read(`?table=${answer.table}&since=${answer.sequence}`))]);
            })();""", "/api/runs/%s/tasks" % run)
        print("%7d tasks wait: show --json %.2f s, why %.2f s, page %d ms first, %d ms again" % (tasks, shown, why, first, again), flush=True)
        self.kill(process)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    parser.add_argument("--tasks", type=int, nargs="*", default=[10_000, 100_000])
    arguments = parser.parse_args()
    OPTIONS.flow = os.path.abspath(arguments.flow)
    if None in programs():
        sys.exit("chromium and chromium-driver are not installed")
    bench = Bench()
    bench.setUp()
    try:
        bench.write("big.lua", BIG)
        bench.write("queue.lua", QUEUE)
        bench.browse()
        for tasks in arguments.tasks:
            bench.finished(tasks)
        for tasks in arguments.tasks:
            bench.followed(tasks)
        for tasks in arguments.tasks:
            bench.waiting(tasks)
    finally:
        bench.doCleanups()
        Bench.doClassCleanups()


if __name__ == "__main__":
    main()
