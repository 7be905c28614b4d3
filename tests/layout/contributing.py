#!/usr/bin/env python3
"""Everything that the commands of CONTRIBUTING.md name exists: presets, targets, ctest entries, files, variables,
failpoints.

usage: contributing.py ROOT BUILD_FOLDER CTEST
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys

LEFT_OUT = re.compile("fuzz_|mutants|bench_")  # may be disabled in this build
INSTALLED = {"gdb", "cmake", "ctest", "mkdir"}


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def commands(text):
    """(line, words) of each command in an sh block."""
    for block in re.finditer(r"^```sh\n(.*?)^```", text, re.M | re.S):
        first = text[:block.start()].count("\n") + 2
        for number, line in enumerate(block[1].splitlines()):
            yield first + number, shlex.split(line)


class Checker:
    def __init__(self, root, build, ctest):
        self.root = pathlib.Path(root)
        presets = json.loads((self.root / "CMakePresets.json").read_text())
        self.presets = {each["name"] for each in presets["configurePresets"] if not each.get("hidden")}
        self.ninja = (pathlib.Path(build) / "build.ninja").read_text()
        self.ctest, self.build = ctest, build
        self.sources = "".join(path.read_text() for folder in ("engine", "tests/sim") for path in (self.root / folder).rglob("*.cc"))
        self.folders = set(self.presets)  # names below build/

    def has_target(self, name):
        return LEFT_OUT.match(name) or re.search(r"^build (?:\S+/)?%s: " % re.escape(name), self.ninja, re.M)

    def entries(self, *options):
        shown = subprocess.run([self.ctest, "--test-dir", self.build, "-N", *options], capture_output=True, text=True, check=True)
        return int(re.search(r"Total Tests: (\d+)", shown.stdout)[1])

    def problems(self, words):
        while words and re.match(r"[A-Z_]+=", words[0]):
            name, value = words.pop(0).split("=", 1)
            if name.startswith("FLOW_") and f'"{name}"' not in self.sources:
                yield f"no source reads {name}"
            if name == "FLOW_FAILPOINT" and f'failpoint("{value.split(":")[0]}")' not in self.sources:
                yield f"no source has the failpoint {value}"
        program = words[0]
        built = re.fullmatch(r"build/(\w+)/bin/(\S+)", program)
        if built and not self.has_target(built[2]):
            yield f"no target builds {program}"
        elif not built and program not in INSTALLED and not (self.root / program).exists():
            yield f"{program} is not in the tree"
        if program == "cmake" and "--preset" in words:
            if words[words.index("--preset") + 1] not in self.presets:
                yield "there is no such preset"
            if "-B" in words:
                self.folders.add(words[words.index("-B") + 1].split("/")[1])
        if program == "cmake" and "--target" in words:
            for target in words[words.index("--target") + 1:]:
                if target != "tidy" and not self.has_target(target):
                    yield f"there is no target {target}"
        if program == "ctest":
            options = [each for each in words[1:] if each not in ("--output-on-failure", "--test-dir") and not each.startswith("build/")]
            if not LEFT_OUT.search(" ".join(options)) and self.entries(*options) == 0:
                yield f"ctest has no entry for {' '.join(options)}"
        for word in words[1:]:
            folder = re.match(r"build/(\w+)", word)
            if folder and folder[1] not in self.folders:
                yield f"no preset makes build/{folder[1]}"
            elif re.match(r"(examples|tests)/", word) and not (self.root / word).exists():
                yield f"{word} is not in the tree"


def main():
    root, build, ctest = sys.argv[1:]
    if not (pathlib.Path(build) / "build.ninja").exists():
        skip("only a build by Ninja names its targets in one file")
    text = (pathlib.Path(root) / "CONTRIBUTING.md").read_text()
    checker, problems, count = Checker(root, build, ctest), [], 0
    for line, words in commands(text):
        count += 1
        problems += [f"CONTRIBUTING.md:{line}: {problem}" for problem in checker.problems(words)]
    for path in re.findall(r"\]\(([^)#:]+)\)|`((?:tests|docs|cmake|\.ci)/[\w./]+)`", text):
        name = path[0] or path[1]
        if "NAME" not in name and not (pathlib.Path(root) / name).exists():
            problems.append(f"CONTRIBUTING.md: {name} is not in the tree")
    print("\n".join(problems) or f"{count} commands name what exists")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
