#!/usr/bin/env python3
"""`--metrics` of `flow head` and `flow worker`: what Prometheus reads there, compared with what runs did.

usage: FLOW_TEST_NVML=LIBRARY metrics.py --flow BIN [TEST...]

promtool checks the text if it is in PATH; else it is unpacked from Debian's package `prometheus` into the folder $FLOW_TEST_BUILD (the
package is not installed: that would start a daemon). Where neither works, only test_promtool_accepts_the_text is skipped.
"""
import functools
import glob
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request

from cluster_place import HOLDS, ClusterPlace, place

SCRIPT = r"""
local flow = require "flow"
local one = flow.task("one", function(ctx, i) return i end)
local flaky = flow.task("flaky", { retries = { max = 3, backoff = "1ms" } }, function(ctx, list)
  if ctx.attempt < 3 then error("not yet") end
  return #list
end)
return flow.pipeline("counted", {}, function()
  return flaky(flow.map(one, { 1, 2, 3, 4, 5, 6 }))
end)
"""

FAILING = r"""
local flow = require "flow"
local bad = flow.shell("bad", { retries = { max = 1, backoff = "1ms" }, command = [[exit 3]] })
local after = flow.task("after", function(ctx, value) return value end)
return flow.pipeline("failing", {}, function() return after(bad {}.stdout) end)
"""

SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|$)')


def samples_of(text):
    """{"name{label=value,…}": number}, in the order of the text. Each sample is of the family above it."""
    samples, family = {}, None
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            family = line.split()[2]
        if line.startswith("#"):
            continue
        name, labels, value = SAMPLE.match(line).groups()
        assert re.fullmatch(re.escape(family) + "(_bucket|_sum|_count)?", name), line
        labels = ",".join("%s=%s" % pair for pair in LABEL.findall(labels or ""))
        key = name + ("{%s}" % labels if labels else "")
        assert key not in samples, line
        samples[key] = float(value)
    return samples


def get(url):
    with urllib.request.urlopen(url, timeout=place.WAIT_SECONDS_MAX) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8", answer.headers
        return answer.read().decode()


@functools.lru_cache(maxsize=None)
def promtool():
    """Returns the path of promtool and "", or None and the reason."""
    build = os.environ.get("FLOW_TEST_BUILD", "")
    unpacked = os.path.join(build, "prometheus", "usr", "bin", "promtool")
    found = shutil.which("promtool") or (unpacked if os.path.exists(unpacked) else None)
    if found:
        return found, ""
    if not build:
        return None, "promtool is not in PATH, and $FLOW_TEST_BUILD is not set"
    with tempfile.TemporaryDirectory(dir=build) as folder:
        try:
            subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, check=True, capture_output=True, text=True)
            (package,) = glob.glob(os.path.join(folder, "prometheus_*.deb"))
            subprocess.run(["dpkg-deb", "-x", package, os.path.join(folder, "files")], check=True, capture_output=True, text=True)
            os.rename(os.path.join(folder, "files"), os.path.join(build, "prometheus"))
        except (OSError, ValueError) as error:
            return None, "promtool cannot be unpacked: %s" % error
        except subprocess.CalledProcessError as error:
            return None, "promtool cannot be unpacked: %s" % error.stderr.strip()[-300:]
    return unpacked, ""


class Metrics(ClusterPlace):
    def scraped(self, url):
        text = get(url)
        if promtool()[0]:
            self.check_by_promtool(text)
        return samples_of(text)

    def check_by_promtool(self, text):
        done = subprocess.run([promtool()[0], "check", "metrics"], input=text, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""), text)

    def test_promtool_accepts_the_text(self):
        path, why = promtool()
        if path is None:
            self.skipTest(why)
        done = subprocess.run([path, "check", "metrics"], input="flow-x 1\n", capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)  # it does check
        self.check_by_promtool(get(self.head_with_metrics()))

    def head_with_metrics(self, *words):
        self.head("--metrics", "127.0.0.1:0", *words)
        return self.reported["metrics"]

    def worker_with_metrics(self, name, *words, **env):
        self.env.update(env)
        process = self.worker(name, "--metrics", "127.0.0.1:0", *words)
        for line in process.stdout:
            found = re.search(r"metrics are at (\S+)", line)
            if found:
                return found.group(1)
        self.fail("no metrics")

    def values(self, samples, name):
        return {key: value for key, value in samples.items() if key.split("{")[0] == name and value != 0}

    def test_the_numbers_are_what_runs_did(self):
        url = self.head_with_metrics()
        self.worker("a")
        self.until_status("a", "up")
        before = self.scraped(url)
        self.assertEqual(before["flow_attempts_started_total"], 0)
        self.write("counted.lua", SCRIPT)
        self.write("failing.lua", FAILING)
        self.good("run", "counted.lua", "--quiet")
        after = self.scraped(url)
        self.assertEqual(self.values(after, "flow_attempts_ended_total"),
                         {"flow_attempts_ended_total{outcome=succeeded}": 7, "flow_attempts_ended_total{outcome=failed}": 2})
        self.assertEqual(self.values(after, "flow_attempts_failed_total"), {"flow_attempts_failed_total{cause=user_error}": 2})
        self.assertEqual(self.values(after, "flow_retries_total"), {"flow_retries_total{cause=user_error}": 2})
        self.assertEqual(self.values(after, "flow_tasks_ended_total"), {"flow_tasks_ended_total{status=succeeded}": 7})
        self.assertEqual((after["flow_attempts_started_total"], after["flow_tasks_cached_total"]), (9, 0))
        self.assertEqual(self.values(after, "flow_runs_ended_total"), {"flow_runs_ended_total{status=succeeded}": 1})
        # Each record is in one commit, and each commit in one bucket.
        commits = after["flow_commit_duration_seconds_count"]
        self.assertEqual(after["flow_commit_duration_seconds_bucket{le=+Inf}"], commits)
        self.assertTrue(0 < commits <= after["flow_journal_records_total"], after)
        self.assertGreater(after["flow_commit_duration_seconds_sum"], 0)

        self.good("run", "counted.lua", "--quiet")
        self.exits(1, self.flow("run", "failing.lua", "--quiet"))
        after = self.scraped(url)
        self.assertEqual(after["flow_tasks_cached_total"], 7)
        self.assertEqual(after["flow_runs_submitted_total"], 3)
        self.assertEqual(self.values(after, "flow_tasks_ended_total"),
                         {"flow_tasks_ended_total{status=succeeded}": 14, "flow_tasks_ended_total{status=failed}": 1,
                          "flow_tasks_ended_total{status=skipped}": 1})
        self.assertEqual(self.values(after, "flow_attempts_failed_total"),
                         {"flow_attempts_failed_total{cause=user_error}": 2, "flow_attempts_failed_total{cause=exit_code}": 2})
        self.assertEqual(self.values(after, "flow_retries_total"),
                         {"flow_retries_total{cause=user_error}": 2, "flow_retries_total{cause=exit_code}": 1})
        self.assertEqual(set(before), set(after))

    def test_gauges_are_what_is_held_now(self):
        url = self.head_with_metrics()
        self.worker("a", slots=3)
        self.until_status("a", "up")
        client = self.run_holds_of(3)
        samples = self.scraped(url)
        self.assertEqual(self.values(samples, "flow_tasks"), {"flow_tasks{status=running}": 3, "flow_tasks{status=ready}": 1})
        self.assertEqual(self.values(samples, "flow_runs"), {"flow_runs{status=running}": 1})
        self.assertEqual(self.values(samples, "flow_workers"), {"flow_workers{status=up}": 1})
        held = {name: samples[name] for name in ("flow_queue_length", "flow_cpu_slots", "flow_cpu_slots_held", "flow_gpus")}
        self.assertEqual(held, {"flow_queue_length": 1, "flow_cpu_slots": 3, "flow_cpu_slots_held": 3, "flow_gpus": 0})
        self.open("gate")
        self.exits(0, self.end(client))
        samples = self.scraped(url)
        self.assertEqual((self.values(samples, "flow_tasks"), samples["flow_cpu_slots_held"]), ({}, 0))

    def run_holds_of(self, running):
        self.write("holds.lua", HOLDS)
        client = self.start("run", "holds.lua", "--json", "--param", "gate=" + self.path("gate"))
        started = self.path("gate.started")
        self.until("%d run" % running, lambda: os.path.exists(started) and len(self.read("gate.started").split()) == running)
        return client

    def test_the_attempts_of_a_lost_worker_are_counted_by_their_cause(self):
        url = self.head_with_metrics()
        lost = self.worker("a", slots=4)
        self.until_status("a", "up")
        client = self.run_holds_of(4)
        self.kill(lost)
        self.until("it is lost", lambda: self.scraped(url)["flow_retries_total{cause=lost}"] == 4)
        self.worker("b", slots=4)
        self.open("gate")
        self.exits(0, self.end(client))
        samples = self.scraped(url)
        self.assertEqual(self.values(samples, "flow_attempts_ended_total"),
                         {"flow_attempts_ended_total{outcome=succeeded}": 4, "flow_attempts_ended_total{outcome=failed}": 4})
        self.assertEqual(samples["flow_attempts_started_total"], 8)

    def gpu_worker(self, name, machine):
        """A worker whose driver is told by this text."""
        self.write("gpus-" + name, machine)
        self.env.update(FLOW_NVML_LIB=os.environ["FLOW_TEST_NVML"], FLOW_FAKE_NVML=self.path("gpus-" + name))
        process = self.worker(name)
        self.until_status(name, "up")
        return process

    def test_the_head_knows_what_the_gpus_of_workers_measure(self):
        self.head()
        worker = self.gpu_worker("a", "gpu GPU-a 80 A\nload 40 20 61 250500\ngpu GPU-b 80 B\n")
        self.until("the GPUs are measured", lambda: all(gpu["reading"] for gpu in self.nodes()["a"]["gpus"]))
        first, second = [gpu["reading"] for gpu in self.nodes()["a"]["gpus"]]
        self.assertGreaterEqual(first.pop("age_s"), 0)
        self.assertEqual(first, {"utilisation": 0.4, "memory_used": 20 << 20, "temperature": 61, "power": 250.5})
        self.assertEqual((second["utilisation"], second["memory_used"], second["power"]), (None, 0, None))
        self.assertIn("40% busy, 61 C, 251 W", self.good("nodes").out.replace("250 W", "251 W"))
        self.assertIn("251 W", self.good("top", "--once").out.replace("250 W", "251 W"))
        self.kill(worker)
        self.until("it is gone", lambda: self.nodes()["a"]["gpus"][0]["reading"] is None)

    def test_what_attempts_on_workers_use_of_their_gpus_is_recorded(self):
        self.head()
        self.gpu_worker("a", "gpu GPU-a 80 A\nload 50 20 61 200000\n")
        self.gpu_worker("b", "gpu GPU-b 80 B\nload 25 20 61 100000\n")
        self.write("uses.lua", r"""
local flow = require "flow"
local one = flow.shell("one", { gpus = 1, gpu = "A", command = "sleep 1" })
local both = flow.shell("both", { gpus = 1, ranks = 2, args = { "after" }, command = "sleep 1" })
return flow.pipeline("uses", {}, function() return both(one().stdout).stdout end)
""")
        self.good("run", "uses.lua", "--quiet")
        one, both = [self.tasks()[name] for name in ("one", "both")]
        self.assertAlmostEqual(one["gpu_used_s"] / one["gpu_measured_s"], 0.5, 4)
        self.assertAlmostEqual(one["gpu_energy_j"] / one["gpu_measured_s"], 200, 2)
        self.assertTrue(1 <= one["gpu_measured_s"] <= one["gpu_s"] + 0.001, one)
        # Rank 0, and the other rank if its end came first.
        self.assertTrue(1 <= both["gpu_measured_s"] <= both["gpu_s"] + 0.001, both)
        self.assertTrue(0.25 - 1e-4 <= both["gpu_used_s"] / both["gpu_measured_s"] <= 0.5 + 1e-4, both)

    def test_what_an_attempt_used_that_was_lost_with_its_worker_is_not_known(self):
        self.head()
        lost = self.gpu_worker("a", "gpu GPU-a 80 A\nload 50 20 61 200000\n")
        self.write("lost.lua", place.HOLD + r"""
local held = flow.shell("held", { gpus = 1, args = { "path" }, retries = { infra = 0 },
  command = [[echo held >> {path}.started; while [ ! -e {path} ]; do sleep 0.05; done]] })
return flow.pipeline("lost", {}, function() return held("%s").stdout end)
""" % self.path("gate"))
        client = self.start("run", "lost.lua", "--quiet")
        self.until_holds("held")
        self.kill(lost)
        self.exits(1, self.end(client))
        held = self.tasks()["held"]
        self.assertGreater(held["gpu_s"], 0)
        self.assertEqual([held[name] for name in ("gpu_used_s", "gpu_measured_s", "gpu_energy_j")], [None] * 3)
        total = self.good("cost", "--json").lines()[0]["total"]
        self.assertEqual((total["gpu_hours"]["used"], total["energy_j"]), (None, None))
        self.assertAlmostEqual(total["gpu_hours"]["unmeasured"], total["gpu_hours"]["held"], 9)

    def test_a_worker_shows_its_gpus_and_what_it_moved(self):
        head = self.head_with_metrics()
        self.write("gpus", "gpu GPU-a 80 A\nload 40 20 61 250500\ngpu GPU-b 80 B\n")
        url = self.worker_with_metrics("a", FLOW_NVML_LIB=os.environ["FLOW_TEST_NVML"], FLOW_FAKE_NVML=self.path("gpus"))
        self.until_status("a", "up")
        self.until("the GPUs are measured", lambda: "flow_gpu_power_watts{gpu=0,uuid=GPU-a}" in self.scraped(url))
        samples = self.scraped(url)
        self.assertEqual({key: value for key, value in samples.items() if key.startswith("flow_gpu_")}, {
            "flow_gpu_utilization_ratio{gpu=0,uuid=GPU-a}": 0.4,
            "flow_gpu_memory_used_bytes{gpu=0,uuid=GPU-a}": 20 << 20, "flow_gpu_memory_used_bytes{gpu=1,uuid=GPU-b}": 0,
            "flow_gpu_memory_size_bytes{gpu=0,uuid=GPU-a}": 80 << 20, "flow_gpu_memory_size_bytes{gpu=1,uuid=GPU-b}": 80 << 20,
            "flow_gpu_temperature_celsius{gpu=0,uuid=GPU-a}": 61, "flow_gpu_power_watts{gpu=0,uuid=GPU-a}": 250.5})
        self.assertEqual((samples["flow_gpus"], samples["flow_cpu_slots"], samples["flow_worker_connected"]), (2, 2, 1))
        self.assertEqual(self.scraped(head)["flow_gpus"], 2)
        with open(self.path("input"), "wb") as out:
            out.write(os.urandom(1 << 20))
        self.write("reads.lua", r"""
local flow = require "flow"
local size = flow.shell("size", { args = { "file" }, command = [[wc -c {file}]] })
return flow.pipeline("reads", {}, function() return size(flow.file("input")).stdout end)
""")
        self.good("run", "reads.lua", "--quiet")
        self.assertEqual(self.scraped(url)["flow_blob_bytes_total{way=from_head}"], 1 << 20)
        self.until("the head knows it",
                   lambda: self.scraped(head)["flow_worker_blob_bytes_total{worker=a,way=from_head}"] == 1 << 20)

    def test_the_process_is_measured(self):
        samples = self.scraped(self.head_with_metrics())
        pid = self.head_process.pid
        self.assertEqual(samples["process_start_time_seconds"] > 1.7e9, True)
        self.assertGreater(samples["process_resident_memory_bytes"], 1 << 20)
        self.assertGreater(samples["process_cpu_seconds_total"], 0)
        self.assertEqual(round(samples["process_open_fds"] / len(os.listdir("/proc/%d/fd" % pid))), 1)
        version = self.good("--version").out.split()[-1]
        self.assertEqual(samples["flow_build_info{version=%s}" % version], 1)

    def test_only_the_metrics_are_there_and_only_for_this_machine(self):
        url = self.head_with_metrics()
        with self.assertRaises(urllib.error.HTTPError) as refused:
            get(url.replace("/metrics", "/"))
        self.assertEqual(refused.exception.code, 404)
        host, port = re.match(r"http://(.*):(\d+)/", url).groups()
        connection = http.client.HTTPConnection(host, int(port))
        connection.request("GET", "/metrics", headers={"Host": "attacker.example"})
        self.assertEqual(connection.getresponse().status // 100, 4)
        for verb in (("head", "--state", "other"), ("worker", "--join", "127.0.0.1:1", "--secret-file", self.secret, "--dir", self.path("w"))):
            self.exits(2, self.flow(*verb, "--metrics", "0.0.0.0:0"), "--metrics-insecure")
            self.exits(2, self.flow(*verb, "--metrics", "nowhere"), "127.0.0.1:9117")
            self.exits(2, self.flow(*verb, "--metrics", "some.host:9117"), "numeric address")
            self.exits(4, self.flow(*verb, "--metrics", "%s:%s" % (host, port)), "Address already in use")

    def test_an_insecure_head_answers_beyond_loopback(self):
        self.head("--metrics", "0.0.0.0:0", "--metrics-insecure")
        port = re.search(r":(\d+)/", self.reported["metrics"]).group(1)
        self.assertIn("flow_build_info", get("http://127.0.0.1:%s/metrics" % port))

    def test_a_head_that_ends_ends_its_metrics(self):
        url = self.head_with_metrics()
        self.head_process.send_signal(signal.SIGTERM)
        self.exits(0, self.end(self.head_process))
        host, port = re.match(r"http://(.*):(\d+)/", url).groups()
        with socket.socket() as probe:
            self.assertNotEqual(probe.connect_ex((host, int(port))), 0)


if __name__ == "__main__":
    place.main()
