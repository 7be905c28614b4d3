#!/usr/bin/env python3
"""Reads the symbols of the inner loops' object files: a symbol that the object file of one
instruction set level exports must have that level's name, or the linker may merge it with the code
for a lesser CPU."""
import pathlib
import re
import subprocess
import sys


def problems_of(path, level):
    listing = subprocess.run(["nm", "-C", "--defined-only", str(path)], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        found = re.match(r"[0-9a-f]* ([A-Za-z]) (.*)$", line)
        # Lower case means local, except for the weak and unique kinds.
        if not found or (found.group(1).islower() and found.group(1) not in "uvw"):
            continue
        if f"flow::cpu::{level}::" not in found.group(2):
            yield f"{path.name} of {level}: {found.group(2)}"


def main():
    problems, files = [], 0
    for folder in pathlib.Path(sys.argv[1]).glob("flow_loops_*.dir"):
        level = folder.name[len("flow_loops_"):-len(".dir")]
        for path in sorted(folder.rglob("*.o")):
            files += 1
            problems += problems_of(path, level)
    print("\n".join(problems) or f"{files} object files define what is theirs")
    return 1 if problems or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
