#!/usr/bin/env python3
"""Runs golden files: commands and, below each, the expected output.

A file is a list of lines: `$ command` (run by bash in a new folder; `> ` continues it), then its stdout,
its stderr with `! ` before each line, and `[code]` if the exit code is not 0. `# ` begins a comment.
Text that varies between runs is replaced by a word: RUN, TIME, DUR, SIZE, DIGEST, PORT, DIR.
`--update` writes the actual output back into the files.
"""
import argparse
import difflib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

REPLACED = [
    (re.compile(r"\b\d{8}-\d{6}-[0-9a-z]+\b"), "RUN"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?"), "TIME"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "DIGEST"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"\b\d+(\.\d+)? (B|KiB|MiB|GiB)\b"), "SIZE"),
    (re.compile(r'("duration_s":)\d+(\.\d+)?'), r"\1DUR"),
    (re.compile(r"(?<![\w.])(\d+(\.\d+)?(ms|s)|\d+m \d+s)(?![\w])"), "DUR"),
]
COMMAND_SECONDS_MAX = 120


def normalise(text, folder):
    text = text.replace(folder, "DIR")
    for pattern, word in REPLACED:
        text = pattern.sub(word, text)
    # Column widths depend on the replaced text.
    return "\n".join(re.sub(r"(?<=\S) {2,}", "  ", line).rstrip() for line in text.splitlines())


def parse(text):
    """Blocks of (comment lines, command lines, expected lines)."""
    blocks, comments = [], []
    for line in text.splitlines():
        if line.startswith("# "):
            comments.append(line)
        elif line.startswith("$ "):
            blocks.append((comments, [line[2:]], []))
            comments = []
        elif line.startswith("> ") and blocks and not blocks[-1][2]:
            blocks[-1][1].append(line[2:])
        elif blocks and (line or blocks[-1][2]):
            blocks[-1][2].append(line)
    return blocks


def run(command, folder, environment):
    done = subprocess.Popen(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = done.communicate(timeout=COMMAND_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(done.pid, signal.SIGKILL)
        out, err = done.communicate()
        err += f"killed after {COMMAND_SECONDS_MAX} seconds\n"
    lines = normalise(out, folder).splitlines()
    lines += [("! " + line).rstrip() for line in normalise(err, folder).splitlines()]
    if done.returncode != 0:
        lines.append(f"[{done.returncode}]")
    return [line if line else "." for line in lines]


def check_file(path, arguments):
    environment = {
        "PATH": str(arguments.bin.resolve()) + ":" + os.environ["PATH"],
        "HOME": "/nonexistent", "TZ": "UTC", "LC_ALL": "C.UTF-8", "TERM": "dumb",
        "SOURCE": str(pathlib.Path(__file__).resolve().parents[2]),
    }
    for name in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"):
        if name in os.environ:
            environment[name] = os.environ[name]
    good, out = True, []
    with tempfile.TemporaryDirectory(prefix="flow-golden-") as folder:
        folder = os.path.realpath(folder)
        for comments, command, expected in parse(path.read_text()):
            got = run("\n".join(command), folder, environment)
            while expected and not expected[-1]:
                expected.pop()
            if got != expected:
                good = False
                print(f"{path.name}: $ {command[0]}")
                for line in difflib.unified_diff(expected, got, "expected", "printed", lineterm="", n=2):
                    print("    " + line)
            out += comments + ["$ " + command[0]] + ["> " + more for more in command[1:]] + got + [""]
    if arguments.update:
        path.write_text("\n".join(out))
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder of `flow`")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("golden", type=pathlib.Path, help="a folder of .txt files, or one file")
    arguments = parser.parse_args()
    files = sorted(arguments.golden.glob("*.txt")) if arguments.golden.is_dir() else [arguments.golden]
    bad = [path.name for path in files if not check_file(path, arguments)]
    print(f"{len(files) - len(bad)} golden files as expected, {len(bad)} not")
    return 1 if (bad and not arguments.update) or not files else 0


if __name__ == "__main__":
    sys.exit(main())
