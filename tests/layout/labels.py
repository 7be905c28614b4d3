#!/usr/bin/env python3
"""Every ctest entry has exactly one of the labels `fast`, `slow` and `case`.

usage: labels.py CTEST BUILD_FOLDER
"""
import collections
import json
import subprocess
import sys

LABELS = {"fast", "slow", "case"}


def main():
    ctest, build = sys.argv[1:]
    command = [ctest, "--test-dir", build, "--show-only=json-v1"]
    tests = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["tests"]
    problems, counts = [], collections.Counter()
    for test in tests:
        labels = [value for each in test["properties"] if each["name"] == "LABELS" for value in each["value"]]
        found = LABELS.intersection(labels)
        counts.update(found)
        if len(found) != 1:
            problems.append(f"`{test['name']}` has the labels {labels}: call flow_labels() or flow_slow() in its CMakeLists.txt")
    print("\n".join(problems) or ", ".join(f"{counts[label]} {label}" for label in sorted(counts)))
    return 1 if problems or not LABELS.issubset(counts) else 0


if __name__ == "__main__":
    sys.exit(main())
