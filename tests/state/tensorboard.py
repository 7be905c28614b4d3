#!/usr/bin/env python3
"""TensorBoard itself reads every point of every series from the files of `flow metrics --tensorboard`.

usage: tensorboard.py --flow BIN --build FOLDER [TEST...]

tensorboard is installed once from PyPI into a folder next to the build. Exit 77 if that fails.
"""
import argparse
import json
import os
import subprocess
import sys

import place

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fetch"))
from python_packages import python_with  # noqa: E402

ACCUMULATOR = "tensorboard.backend.event_processing.event_accumulator"
READER = r'''
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = {}
for folder in sys.argv[1:]:
    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    read[folder] = {tag: [[e.step, repr(e.value), e.wall_time] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
print(json.dumps(read))
'''
SCRIPT = r'''
local flow = require "flow"
local train = flow.task("train", function(ctx, item)
  for step = 1, 1500 do
    ctx:metric("loss", item.rate / step, step)
    if step % 100 == 0 then ctx:metric("val/accuracy of it", step / 2048, step) end
  end
  for _, step in ipairs { 5, 3, 3, -2, 0, 1 << 40 } do ctx:metric("jumps", step, step) end
  for i, value in ipairs { 0 / 0, 1 / 0, -1 / 0, 1e300, 0.1 } do ctx:metric("odd", value, i) end
end)
return flow.pipeline("train", {}, function()
  return { flow.map(train, { { rate = 0.3 }, { rate = 0.7 } }):tag(function(item) return "r" .. item.rate end), train { rate = 1 } }
end)
'''
PYTHON = [sys.executable]


class TensorBoard(place.Place):
    def test_every_point_of_every_series_is_read_back(self):
        self.write("pipeline.lua", SCRIPT)
        self.good("run", ".")
        paths = self.good("metrics", "last", "--tensorboard", "tb").out.split("\n")[:-1]
        self.assertEqual([os.path.dirname(path) for path in paths], ["tb/train#2", "tb/train[r0.3]", "tb/train[r0.7]"])
        done = subprocess.run([*PYTHON, "-c", READER, *map(os.path.dirname, paths)], cwd=self.folder, check=True,
                              capture_output=True, text=True)
        read = json.loads(done.stdout.splitlines()[-1])
        series = self.good("metrics", "last", "--json").lines()
        self.assertEqual(len(series), 12)
        for line in series:
            folder = "tb/" + (line["task"] if line["tag"] is None else "train[%s]" % line["tag"])
            points = sorted(line["points"], key=lambda point: point["step"])
            found = read[folder].pop(line["metric"])
            self.assertEqual([step for step, _, _ in found], [point["step"] for point in points], line["metric"])
            for (_, value, _), point in zip(found, points):
                self.assertEqual(value, repr(float32(float(point["value"]))), line["metric"])
        self.assertEqual(set(map(len, read.values())), {0})


def float32(value):
    import ctypes
    return ctypes.c_float(value).value


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--build", required=True)
    args, rest = parser.parse_known_args()
    python, why = python_with(args.build, ["tensorboard"], [ACCUMULATOR])
    if python is None:
        print("skipped: " + why)
        sys.exit(77)
    PYTHON[0] = python
    sys.argv[1:] = rest
    place.main()


if __name__ == "__main__":
    main()
