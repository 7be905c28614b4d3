#!/usr/bin/env python3
"""Every tracked C++ source is formatted by clang-format. Skipped (77) without the clang-format of
Debian 12."""
import pathlib
import re
import subprocess
import sys

VERSION = "14"  # other versions would format some lines differently
SUFFIXES = {".cc", ".hpp", ".h", ".cu", ".cuh"}


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def said(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        skip(f"{command[0]} is not installed")
    except subprocess.CalledProcessError as error:
        skip(f"{command[0]}: {error.stderr.strip()}")


def main():
    root = pathlib.Path(sys.argv[1])
    found = re.search(r"version (\d+)", said("clang-format", "--version"))
    if not found or found.group(1) != VERSION:
        skip(f"clang-format {VERSION} is needed, this is {found.group(1) if found else 'unknown'}")
    listed = said("git", "-C", str(root), "-c", f"safe.directory={root}", "ls-files", "-z").split("\0")
    files = [root / name for name in listed if pathlib.Path(name).suffix in SUFFIXES]
    files = [file for file in files if file.exists()]
    result = subprocess.run(["clang-format", "--dry-run", "-Werror", *map(str, files)], capture_output=True, text=True)
    print(result.stderr, end="")
    print(f"{len(files)} files, {'all formatted' if result.returncode == 0 else 'run clang-format -i on those above'}")
    sys.exit(1 if result.returncode else 0)


main()
