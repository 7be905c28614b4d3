#!/usr/bin/env python3
"""No former identifier of renamed.txt returns: none occurs as a whole word in a tracked file.

usage: renamed.py ROOT
"""
import pathlib
import re
import subprocess
import sys

FOLDERS = ["engine", "lua", "kernels", "transports", "stdlib", "docs", "examples", "tests"]
LIST = "tests/layout/renamed.txt"
DATA = ("examples/data/", "tests/fuzz/corpus/")  # third-party texts


def main():
    root = pathlib.Path(sys.argv[1])
    names = (root / LIST).read_text().split()
    if names != sorted(set(names)):
        print(f"{LIST} is not sorted, or has a name twice")
        return 1
    command = ["git", "-C", str(root), "-c", f"safe.directory={root}", "ls-files", "-z", *FOLDERS]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    except (FileNotFoundError, subprocess.CalledProcessError):
        print("skipped: this is not a git checkout")
        return 77
    former = re.compile(r"\b(?:" + "|".join(map(re.escape, names)) + r")\b")
    found = 0
    for name in sorted(filter(None, listed)):
        path = root / name
        if name == LIST or name.startswith(DATA) or not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for match in former.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            print(f"{name}:{line}: `{match.group()}` was renamed; see git log -S{match.group()}")
            found += 1
    print(f"{len(names)} former names, {found} uses")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
