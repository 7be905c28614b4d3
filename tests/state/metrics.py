#!/usr/bin/env python3
"""What tasks report with ctx:metric is kept with the run, limited, shown, compared and written for TensorBoard."""
import csv
import glob
import io
import json
import math
import os
import struct
import subprocess

import place

SCRIPT = r'''
local flow = require "flow"
local train = flow.task("train", function(ctx, rate, count)
  for step = 1, count do ctx:metric("loss", rate / step, step) end
  ctx:metric("accuracy", 0.25)
  ctx:metric("accuracy", 0.75)
  return rate
end)
return flow.pipeline("train", { rate = flow.param.number { default = 0.5 }, count = flow.param.int { default = 4 } },
  function(p) return train(p.rate, p.count) end)
'''
MAPPED = r'''
local flow = require "flow"
local score = flow.task("score", function(ctx, item) ctx:metric("size, or so", item, 7) return item end)
return flow.pipeline("mapped", {}, function()
  return { flow.map(score, { 1, 2 }):tag(function(item) return "s" .. item end), flow.map(score, { 3, 4 }) }
end)
'''
# An attempt that is killed after its checkpoint; the next one continues from there.
CUT = r'''
local flow = require "flow"
local train = flow.task("train", { retries = 0 }, function(ctx)
  local state = ctx:restore() or { step = 0, life = 0 }
  state.life = state.life + 1
  while state.step < 8 do
    state.step = state.step + 1
    ctx:metric("loss", state.life * 100 + state.step, state.step)
    ctx:metric("count", state.life * 100 + state.step)
    if state.life == 1 and state.step == 4 then ctx:checkpoint(state) ctx:restore() end
    if state.life == 1 and state.step == 6 then
      ctx:step("six", function() return true end)
      flow.fs.write("FOLDER/six", "")
      while true do end
    end
  end
  return state.step
end)
return flow.pipeline("cut", {}, function() return train() end)
'''
ODD = r'''
local flow = require "flow"
local odd = flow.task("odd", function(ctx)
  for i, value in ipairs { 1, 0 / 0, 1 / 0, -1 / 0, 0.1, -0.0, 1e308 } do ctx:metric("odd", value, i - 3) end
end)
local silent = flow.task("silent", function() return 1 end)
return flow.pipeline("odd", {}, function() return { odd(), silent() } end)
'''
MANY = r'''
local flow = require "flow"
local many = flow.task("many", function(ctx) for i = 1, 1100 do ctx:metric("m" .. i, i) end end)
return flow.pipeline("many", {}, function() return many() end)
'''
LONG = r'''
local flow = require "flow"
local long = flow.task("long", function(ctx, count) for i = 1, count do ctx:metric("v", i, i) end end)
return flow.pipeline("long", { count = flow.param.int {} }, function(p) return long(p.count) end)
'''
GANG = r'''
local flow = require "flow"
local gang = flow.task("gang", { ranks = 2 }, function(ctx) ctx:metric("rank", ctx.rank) return 1 end)
return flow.pipeline("gang", {}, function() return gang() end)
'''
RETRIED = r'''
local flow = require "flow"
local again = flow.task("again", { retries = 1 }, function(ctx)
  ctx:metric("before", ctx.attempt)
  for step = 1, ctx.attempt == 1 and 9 or 3 do ctx:metric("loss", ctx.attempt * 10 + step, step) end
  if ctx.attempt == 1 then ctx:metric("only_first", 1) error("once") end
end)
return flow.pipeline("again", {}, function() return again() end)
'''
FAILS = r'''
local flow = require "flow"
local train = flow.task("train", function(ctx) ctx:metric("loss", 5) return 1 end)
local check = flow.task("check", { retries = 0 }, function(ctx, x) ctx:metric("seen", 1) error("wrong") end)
return flow.pipeline("fails", {}, function() return check(train()) end)
'''
RUNNING = r'''
local flow = require "flow"
local slow = flow.task("slow", function(ctx)
  ctx:metric("loss", 3, 1)
  ctx:step("reported", function() return true end)
  flow.fs.write("FOLDER/reported", "")
  while not flow.fs.exists("FOLDER/go") do end
end)
return flow.pipeline("slow", {}, function() return slow() end)
'''

CRC = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    CRC.append(byte)


def masked_crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """The contents of the records of a TFRecord file, whose checksums must be right."""
    at = 0
    while at < len(data):
        length, length_crc = struct.unpack_from("<QI", data, at)
        assert masked_crc32c(data[at:at + 8]) == length_crc, "the checksum of a length"
        content = data[at + 12:at + 12 + length]
        (crc,) = struct.unpack_from("<I", data, at + 12 + length)
        assert masked_crc32c(content) == crc, "the checksum of a record"
        yield content
        at += 16 + length


def fields(data):
    """(number, value) of each field of a protobuf message."""
    def varint(at):
        number = shift = 0
        while True:
            number |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                return number, at
    at = 0
    while at < len(data):
        key, at = varint(at)
        kind = key & 7
        if kind == 0:
            value, at = varint(at)
        elif kind == 2:
            size, at = varint(at)
            value, at = data[at:at + size], at + size
        else:
            size = 8 if kind == 1 else 4
            (value,) = struct.unpack_from("<d" if kind == 1 else "<f", data, at)
            at += size
        yield key >> 3, value


def scalars(path):
    """{tag: [(step, value, time)]} of an event file."""
    with open(path, "rb") as file:
        events = [dict(fields(content)) for content in records(file.read())]
    assert events[0][3] == b"brain.Event:2", events[0]
    out = {}
    for event in events[1:]:
        value = dict(fields(dict(fields(event[5]))[1]))
        step = event[2] - (1 << 64) if event[2] >> 63 else event[2]
        out.setdefault(value[1].decode(), []).append((step, value[2], event[1]))
    return out


def as_float32(value):
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


class Metrics(place.Place):
    def script(self, text, name="pipeline.lua"):
        self.write(name, text.replace("FOLDER", self.folder))

    def series(self, *words):
        """{(task, metric): line of --json}"""
        return {(line["task"], line["metric"]): line for line in self.good("metrics", *words, "--json").lines()}

    def values(self, *words):
        return {key: [(p["step"], p["value"]) for p in line["points"]] for key, line in self.series(*words).items()}

    def test_points_are_shown_as_table_points_json_and_csv(self):
        self.script(SCRIPT)
        self.good("run", ".")
        lines = self.series("last")
        loss, accuracy = lines["train", "loss"], lines["train", "accuracy"]
        self.assertEqual([(p["step"], p["value"]) for p in loss["points"]], [(n, 0.5 / n) for n in range(1, 5)])
        self.assertEqual([(p["step"], p["value"]) for p in accuracy["points"]], [(1, 0.25), (2, 0.75)])
        self.assertEqual((loss["count"], loss["first"], loss["last"], loss["min"], loss["max"], loss["best"], loss["last_step"]),
                         (4, 0.5, 0.125, 0.125, 0.5, 0.125, 4))
        self.assertEqual((accuracy["best"], accuracy["tag"]), (0.75, None))
        table = self.good("metrics", "last", LC_ALL="C.UTF-8").out.splitlines()
        self.assertEqual(table[0].split(), "task metric points first last min max best last step".split())
        self.assertEqual(table[2].split(), "train loss 4 0.5 0.125 0.125 0.5 0.125 4 █▃▂▁".split())
        self.assertNotIn("█", self.good("metrics", "last", LC_ALL="C").out)
        points = self.good("metrics", "last", "train", "--metric", "accuracy").out.splitlines()
        self.assertEqual([line.split()[:4] for line in points[1:]],
                         [["train", "accuracy", "1", "0.25"], ["train", "accuracy", "2", "0.75"]])
        self.assertEqual(self.good("metrics", "train", "--metric", "accuracy").out.splitlines(), points)
        rows = list(csv.DictReader(io.StringIO(self.good("metrics", "last", "--csv").out)))
        self.assertEqual(list(rows[0]), "run,task,tag,metric,step,value,time".split(","))
        self.assertEqual([(r["metric"], int(r["step"]), float(r["value"])) for r in rows],
                         [("accuracy", 1, 0.25), ("accuracy", 2, 0.75)] + [("loss", n, 0.5 / n) for n in range(1, 5)])
        self.exits(2, self.flow("metrics", "last", "--metric", "los"), "has no metric `los` (did you mean `loss`?)")
        self.exits(2, self.flow("metrics", "last", "tran"), "has no task `tran`")

    def test_instances_are_named_by_tag_and_index(self):
        self.script(MAPPED)
        self.good("run", ".")
        all_of_it = self.values("last")
        self.assertEqual(len(all_of_it), 4)
        self.assertEqual(self.values("last", "score[s2]"), {("score[2]", "size, or so"): [(7, 2)]})
        self.assertEqual(self.values("last", "score#2[1]"), {("score#2[1]", "size, or so"): [(7, 3)]})
        self.assertEqual(len(self.values("last", "score")), 2)
        rows = list(csv.DictReader(io.StringIO(self.good("metrics", "last", "score[s1]", "--csv").out)))
        self.assertEqual([(r["task"], r["tag"], r["metric"], r["value"]) for r in rows],
                         [("score[1]", "s1", "size, or so", "1.0")])
        self.good("metrics", "last", "--tensorboard", "tb")
        folders = {os.path.relpath(os.path.dirname(path), self.path("tb")) for path in
                   glob.glob(self.path("tb", "**", "events.out.tfevents.*"), recursive=True)}
        self.assertEqual(folders, {"score[s1]", "score[s2]", "score#2[1]", "score#2[2]"})

    def test_an_attempt_after_a_kill_replaces_the_points_from_its_checkpoint_on(self):
        self.script(CUT)
        run = self.start("run", ".")
        self.until("the sixth point", lambda: os.path.exists(self.path("six")))
        # Committed before the step is: what the first attempt reported until then is not lost.
        before = [(n, 100 + n) for n in range(1, 7)]
        self.assertEqual(self.values("last"), {("train", "loss"): before, ("train", "count"): before})
        self.kill(run)
        self.assertEqual(self.values("last"), {("train", "loss"): before, ("train", "count"): before})
        self.good("resume", "last")
        after = [(n, 100 + n) for n in range(1, 5)] + [(n, 200 + n) for n in range(5, 9)]
        self.assertEqual(self.values("last"), {("train", "loss"): after, ("train", "count"): after})

    def test_a_retry_without_a_checkpoint_replaces_what_it_reports_again(self):
        self.script(RETRIED)
        self.good("run", ".")
        self.assertEqual(self.values("last"), {("again", "before"): [(1, 2)], ("again", "only_first"): [(1, 1)],
                                               ("again", "loss"): [(n, 20 + n) for n in (1, 2, 3)]})

    def test_a_run_that_goes_on_is_read(self):
        self.script(RUNNING)
        run = self.start("run", ".")
        self.until("a point", lambda: os.path.exists(self.path("reported")))
        self.assertEqual(self.values("last"), {("slow", "loss"): [(1, 3)]})
        self.open("go")
        self.exits(0, self.end(run))

    def test_only_rank_0_of_a_gang_counts(self):
        self.script(GANG)
        self.good("run", ".", "--jobs", "2")
        self.assertEqual(self.values("last"), {("gang", "rank"): [(1, 0)]})

    def test_odd_values_are_kept_everywhere(self):
        self.script(ODD)
        self.good("run", ".")
        values = [1, "NaN", "Infinity", "-Infinity", 0.1, 0, 1e308]
        self.assertEqual(self.values("last"), {("odd", "odd"): list(zip(range(-2, 5), values))})
        line = self.series("last")["odd", "odd"]
        self.assertEqual((line["min"], line["max"]), ("-Infinity", "Infinity"))
        rows = [float(r["value"]) for r in csv.DictReader(io.StringIO(self.good("metrics", "last", "--csv").out))]
        self.assertTrue(math.isnan(rows[1]))
        self.assertEqual(rows[2:], [math.inf, -math.inf, 0.1, -0.0, 1e308])
        self.assertEqual(math.copysign(1, rows[5]), -1)
        (path,) = self.good("metrics", "last", "--tensorboard", "tb").out.split()
        read = scalars(self.path(path))["odd"]
        self.assertEqual([step for step, _, _ in read], list(range(-2, 5)))
        self.assertTrue(math.isnan(read[1][1]))
        self.assertEqual([value for _, value, _ in read[2:]], [as_float32(value) for value in rows[2:]])
        self.assertIn("has no metrics", self.good("metrics", "last", "silent").out)
        self.exits(2, self.flow("metrics", "last", "--csv", "--tensorboard", "tb"))

    def test_tensorboard_files_hold_every_point_and_are_replaced(self):
        self.script(SCRIPT)
        self.good("run", ".", "--param", "count=300", "--param", "rate=0.3")
        (path,) = self.good("metrics", "last", "--tensorboard", "tb").out.split()
        self.assertEqual(self.good("metrics", "last", "--tensorboard", "tb").out.split(), [path])
        self.assertEqual(self.good("metrics", "last", "--tensorboard", "tb", "--json").lines(), [{"path": path}])
        self.assertEqual(len(os.listdir(self.path("tb", "train"))), 1)
        read = scalars(self.path(path))
        self.assertEqual([(step, value) for step, value, _ in read["loss"]],
                         [(n, as_float32(0.3 / n)) for n in range(1, 301)])
        self.assertEqual([(step, value) for step, value, _ in read["accuracy"]], [(1, 0.25), (2, 0.75)])
        self.good("metrics", "last", "--metric", "accuracy", "--tensorboard", "one")
        (path,) = glob.glob(self.path("one", "train", "*"))
        self.assertEqual(set(scalars(path)), {"accuracy"})

    def test_a_run_keeps_a_thousand_series(self):
        self.script(MANY)
        done = self.good("run", ".")
        self.assertIn("ctx:metric: the run has 1000 series", done.out + done.err)
        self.assertEqual({metric for _, metric in self.series("last")}, {"m%d" % n for n in range(1, 1001)})
        self.assertIn("ctx:metric: the run has 1000 series", self.good("logs", "last").out)

    def test_of_a_long_series_every_second_point_is_dropped(self):
        self.script(LONG)
        self.good("run", ".", "--param", "count=100000")
        (line,) = self.series("last").values()
        self.assertEqual((line["count"], line["first"], line["last"]), (100000, 1, 100000))
        count = 230000
        self.good("run", ".", "--param", "count=%d" % count)
        (line,) = self.series("last").values()
        steps = [point["step"] for point in line["points"]]
        self.assertLessEqual(len(steps), 100000)
        self.assertGreaterEqual(len(steps), 50000)
        self.assertEqual((steps[0], steps[-1]), (1, count))
        self.assertEqual([p["value"] for p in line["points"]], steps)
        self.assertLessEqual(max(b - a for a, b in zip(steps, steps[1:])), 4)

    def test_a_cached_task_shows_the_points_of_the_run_that_computed_it_until_gc_removes_that(self):
        self.script(SCRIPT)
        self.good("run", ".")
        first = self.show()["run"]
        points = self.values("last")
        self.good("run", ".")
        second = self.show()["run"]
        self.assertTrue(self.tasks()["train"]["cached"])
        self.assertEqual(self.values(second), points)
        self.assertEqual({line["computed_by"] for line in self.series(second).values()}, {first})
        self.assertIn("train was cached: these are the points of the run " + first, self.good("metrics", second).out)
        self.good("gc", "--keep", "1")
        self.assertEqual(self.values(second), {})
        self.good("gc", "--keep", "0")
        self.good("run", ".")
        self.assertEqual(self.values("last"), points)

    def test_a_resume_with_new_code_keeps_the_points_of_tasks_that_it_does_not_change(self):
        self.script(FAILS)
        self.exits(1, self.flow("run", "."))
        self.assertEqual(self.values("last"), {("train", "loss"): [(1, 5)], ("check", "seen"): [(1, 1)]})
        self.script(FAILS.replace('error("wrong")', 'ctx:metric("seen", 2)'))
        self.good("resume", "last", "--code", "new")
        self.assertTrue(self.tasks()["train"]["cached"])
        self.assertEqual(self.values("last"), {("train", "loss"): [(1, 5)], ("check", "seen"): [(1, 1), (2, 2)]})

    def test_points_come_from_workers(self):
        self.script(MAPPED)
        self.good("run", ".", "--workers", "2")
        self.assertEqual(sorted(value for ((_, value),) in self.values("last").values()), [1, 2, 3, 4])

    def test_a_sweep_is_compared(self):
        self.script(SCRIPT)
        for rate in ("0.5", "0.25"):
            self.good("run", ".", "--name", "rate-" + rate, "--param", "rate=" + rate)
        a, b = self.good("compare", "rate-0.5", "rate-0.25", "--json").lines()
        self.assertEqual((a["name"], a["params"], b["params"]), ("rate-0.5", {"rate": 0.5}, {"rate": 0.25}))
        self.assertEqual([(m["task"], m["metric"], m["last"], m["best"], m["last_step"]) for m in b["metrics"]],
                         [("train", "accuracy", 0.75, 0.75, 2), ("train", "loss", 0.0625, 0.0625, 4)])
        head, *rows = self.good("compare", "rate-0.5", "rate-0.25", "--metric", "loss").out.splitlines()
        self.assertEqual(head.split(), "run name rate loss last loss best".split())
        self.assertEqual([row.split()[1:] for row in rows],
                         [["rate-0.5", "0.5", "0.125", "0.125"], ["rate-0.25", "0.25", "0.0625", "0.0625"]])
        self.exits(2, self.flow("compare", "last", "last", "--metric", "lost"), "did you mean `loss`?")
        self.exits(2, self.flow("compare", "last"))

    def test_metrics_of_a_task_are_compared(self):
        self.script(MAPPED)
        self.good("run", ".", "--name", "mapped")
        def compared(*words):
            lines = self.good("compare", *words, "--json").lines()
            return [[(m["task"], m["tag"]) for m in line["metrics"]] for line in lines]
        both = ["mapped", "mapped"]
        self.assertEqual([len(metrics) for metrics in compared(*both)], [4, 4])
        self.assertEqual(compared(*both, "--task", "score[s2]"), [[("score[2]", "s2")]] * 2)
        self.assertEqual(compared(*both, "--task", "score#2[1]"), [[("score#2[1]", None)]] * 2)
        self.assertEqual(compared(*both, "--task", "score"), [[("score[1]", "s1"), ("score[2]", "s2")]] * 2)
        self.exits(2, self.flow("compare", *both, "--task", "scores"), "has no task `scores`")
        self.script(SCRIPT)
        self.good("run", ".", "--name", "other")
        self.assertEqual(compared("other", "mapped", "--task", "score[s1]"), [[], [("score[1]", "s1")]])

    def test_cached_instances_of_one_run_are_one_line(self):
        self.script(MAPPED)
        self.good("run", ".")
        first = self.show()["run"]
        self.good("run", ".")
        lines = self.good("metrics", "last").out.splitlines()
        self.assertEqual([line for line in lines if "cached" in line],
                         ["score[s1], score[s2], score#2[1,2] (4 tasks) were cached: these are the points of the run %s."
                          % first])

    def test_a_state_without_metrics_opens_and_gets_them(self):
        self.script(SCRIPT)
        self.good("run", ".")
        subprocess.run([place.OPTIONS.newer, self.state, "older"], check=True)
        self.assertEqual(self.show()["status"], "succeeded")
        self.assertEqual(self.values("last"), {})
        self.good("run", ".", "--fresh")
        self.assertEqual(len(self.values("last")), 2)


if __name__ == "__main__":
    place.main()
