#!/usr/bin/env python3
"""Pictures of each view of the page, light and dark, of a demo that is the same each time but for its times.

usage: screenshots.py --flow BIN [--update FOLDER] [TEST...]

Compares them with those in docs/screens: the layout of a view may differ in a small part of its blurred pixels, because fonts and
times differ. --update writes them. Skipped (77) without Debian's chromium, chromium-driver and python3-selenium.
"""
import base64
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from page_place import ASKS, PRICES, SERVES, WAITS  # noqa: E402
from page_views import Views  # noqa: E402, before selenium: it may start again with Debian's Python
import browser  # noqa: E402
from place import OPTIONS, main  # noqa: E402

SCREENS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "screens")
WIDTH, HEIGHT = 1280, 800
DIFFERS_MAX = 0.06  # of the cells of a picture
VIEWS = ("runs", "run", "task", "waiting", "workers", "services", "metrics", "cost")

DEMO = r'''
local flow = require "flow"
local fetch = flow.task("fetch", function(ctx) ctx:log("reading 4 parts") return { 1, 2, 3, 4 } end)
local train = flow.task("train", { retries = 1 }, function(ctx, n)
  for i = 1, 40 do ctx:metric("loss", (1 + n / 4) / i, i) end
  if n == 3 and ctx.attempt == 1 then error("the first attempt of part 3 fails") end
  return { part = n, loss = (1 + n / 4) / 40 }
end)
local rank = flow.task("rank", function(ctx, list) table.sort(list, function(a, b) return a.loss < b.loss end) return list end)
return flow.pipeline("demo", {}, function(p) return rank(flow.map(train, fetch())) end)
'''

# What differs from run to run: times, ids, paths and the picture of the times. Returns [left, top, right, bottom] of each.
MASKED = """
const mask = "time, .id, .path, .fact .number, td.number, .spans, .log-view, .why, #critical, #asked, .holds, .link-state, .crumbs, .overlay, .legend, .virtual td, .histogram, .latency, .costs td, .costs .cost-bar, .losses td, .facts .number";
return [...document.querySelectorAll(mask)].map((each) => each.getBoundingClientRect()).map((box) => [box.left, box.top, box.right, box.bottom]);
"""

# Cells of 16 by 16 pixels, each with its mean brightness; the part of cells outside the mask that differ by more than an eighth.
COMPARE = """
const [one, two, masks, end] = arguments;
const CELL = 16;
const cells = (address) => new Promise((done, fail) => {
  const image = new Image();
  image.onerror = fail;
  image.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = Math.round(image.width / CELL);
    canvas.height = Math.round(image.height / CELL);
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    done({ width: canvas.width, values: Array.from({ length: data.length / 4 }, (_, i) => (data[4 * i] + data[4 * i + 1] + data[4 * i + 2]) / 3) });
  };
  image.src = `data:image/png;base64,${address}`;
});
const isMasked = (x, y) => masks.some(([left, top, right, bottom]) => x * CELL < right && (x + 1) * CELL > left && y * CELL < bottom && (y + 1) * CELL > top);
Promise.all([cells(one), cells(two)]).then(([a, b]) => {
  if (a.width !== b.width || a.values.length !== b.values.length) return end(1);
  const shown = a.values.map((_, i) => i).filter((i) => !isMasked(i % a.width, Math.floor(i / a.width)));
  return end(shown.filter((i) => Math.abs(a.values[i] - b.values[i]) > 32).length / shown.length);
}, () => end(-1));
"""


class Screens(Views):
    def pictures(self):
        """{name: (PNG as base64, what differs from run to run)} of each view, light and dark."""
        self.write("demo.lua", DEMO)
        self.write("serves.lua", SERVES.replace("FACTOR", "2"))
        self.write("waits.lua", WAITS)
        self.write("asks.lua", ASKS)
        self.write("flow.toml", PRICES)
        self.lead()
        self.good("run", "demo.lua", "--name", "nightly", "--budget", "50 USD", "--quiet")
        self.good("run", "serves.lua", "--name", "prod", "--detach")
        url = self.good("services", "--json").lines()[0]["url"]
        for number in range(200):
            self.request(url, number)
        self.start("run", "waits.lua", "--param", "path=" + self.path("gate"), "--name", "held")
        self.until_holds("first")
        self.start("run", "asks.lua", "--name", "approval")
        self.until_waits("ask", "approval")
        run = self.show("nightly")["run"]
        addresses = dict(zip(VIEWS, ("#/", "#/runs/" + run, "#/runs/%s/task/rank" % run, "#/waiting", "#/workers", "#/services", "#/metrics?run=" + run, "#/cost?run=" + run)))
        self.browse(width=WIDTH)
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False})
        pictures = {}
        for scheme in ("light", "dark"):
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            for view, address in addresses.items():
                self.driver.get(self.address + address)
                self.driver.refresh()
                self.wait("the view", lambda: self.is_drawn() and self.text("#link").startswith("live"))
                if view == "task":
                    self.wait("its result", lambda: len(self.all("#result-table tbody tr")) == 4)
                if view == "services":
                    self.wait("its histogram", lambda: len(self.all(".histogram")) == 1)
                if view == "cost":
                    self.wait("its table", lambda: len(self.all(".costs tbody tr")) == 4)
                if view == "metrics":
                    self.wait("its lines", lambda: len(self.all("#overlay .line")) == 4)
                self.driver.execute_async_script("const end = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => end()))")
                pictures["%s-%s" % (view, scheme)] = (self.driver.get_screenshot_as_base64(), self.driver.execute_script(MASKED))
        return pictures

    def test_each_view_looks_as_in_the_documentation(self):
        update = OPTIONS.update
        for name, (picture, masked) in self.pictures().items():
            path = os.path.join(update or SCREENS, name + ".png")
            if update:
                with open(path, "wb") as file:
                    file.write(base64.b64decode(picture))
                continue
            with open(path, "rb") as file:
                kept = base64.b64encode(file.read()).decode()
            self.driver.get("about:blank")
            differs = self.driver.execute_async_script(COMPARE, kept, picture, masked)
            self.assertGreaterEqual(differs, 0, name + " is no picture")
            self.assertLessEqual(differs, DIFFERS_MAX, "%s differs in %.1f%% of its cells: look at it, and write it again with --update" % (name, 100 * differs))


if __name__ == "__main__":
    if None in browser.programs():
        print("skipped: chromium and chromium-driver are not installed")
        sys.exit(77)
    OPTIONS.update = None
    if "--update" in sys.argv:
        at = sys.argv.index("--update")
        OPTIONS.update = os.path.abspath(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    if not any(word.startswith("Screens") for word in sys.argv[1:]):
        sys.argv.append("Screens.test_each_view_looks_as_in_the_documentation")
    main()
