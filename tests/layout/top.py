#!/usr/bin/env python3
"""The tracked entries at the top of the tree are the folders of the source map, and dot files."""
import subprocess
import sys

ALLOWED = {"CHANGELOG.md", "CMakeLists.txt", "CMakePresets.json", "CONTRIBUTING.md", "LICENSE", "README.md", "cmake", "docs", "engine", "examples",
           "kernels", "lua", "stdlib", "tests", "transports"}


def main():
    root = sys.argv[1]
    command = ["git", "-C", root, "-c", f"safe.directory={root}", "ls-tree", "--name-only", "-z", "HEAD"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        print("skipped: this is no git checkout")
        sys.exit(77)
    others = sorted(name for name in listed.split("\0") if name and not name.startswith(".") and name not in ALLOWED)
    if others:
        print(f"not allowed at the top of the tree: {', '.join(others)}")
        sys.exit(1)


main()
