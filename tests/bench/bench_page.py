#!/usr/bin/env python3
"""How fast the page of flow ui shows a large run, and how far it is behind a run that goes on. Prints figures and asserts none.

usage: bench_page.py --flow BIN [--tasks N...]

"shown": from the change of the address until the list of tasks has its rows. "answer": the page's request for all tasks alone.
"behind": from the end of the run until the page says that it has succeeded.
"""
import argparse
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "page"))
from page_place import BIG  # noqa: E402
from page_views import Views, programs  # noqa: E402
from place import OPTIONS  # noqa: E402

TIMES = 3
LONG_TASK = """
window.longest = 0;
new PerformanceObserver((list) => list.getEntries().forEach((each) => (window.longest = Math.max(window.longest, each.duration)))).observe({ type: "longtask", buffered: false });
"""


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

    def followed(self, tasks):
        self.visit("#/")
        before = len(self.runs())
        process = self.start("run", "big.lua", "--param", "n=%d" % tasks, "--quiet", "--fresh")
        self.until("the run", lambda: len(self.runs()) > before)
        run = self.show_row()["run"]
        self.visit("#/runs/" + run)
        self.wait("the tasks", lambda: self.text("#task-summary").startswith("{:,}".format(tasks)))
        self.driver.execute_script(LONG_TASK)
        seen = set()
        while process.poll() is None:
            seen.add(self.text("#counts"))
        ended = time.monotonic()
        self.wait("the end", lambda: self.text("#facts .state") == "succeeded")
        behind = time.monotonic() - ended
        row = next(each for each in self.runs() if each["run"] == run)
        took = (time.mktime(time.strptime(row["finished"][:19], "%Y-%m-%dT%H:%M:%S")) - time.mktime(time.strptime(row["started"][:19], "%Y-%m-%dT%H:%M:%S"))) or 1
        longest = self.driver.execute_script("return window.longest")
        print("%7d tasks in %d s (%d/s): behind %.1f s; %d different counts shown meanwhile, the page stood still for at most %d ms" % (
            tasks, took, tasks / took, behind, len(seen), longest), flush=True)


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
        bench.browse()
        for tasks in arguments.tasks:
            bench.finished(tasks)
        for tasks in arguments.tasks:
            bench.followed(tasks)
    finally:
        bench.doCleanups()


if __name__ == "__main__":
    main()
