#!/usr/bin/env python3
"""Checks each compiled CUDA kernel of all architectures: its registers times the threads of its
largest block must not exceed the registers of a block, or launches would fail.

usage: registers.py ROOT LIBRARY [BUILD]
BUILD: a folder for cuobjdump and nvdisasm of PyPI's packages, if the machine lacks them.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

REGISTERS_MAX = 65536  # per block
UNIT = 8               # allocation unit of a thread's registers
KERNEL = re.compile(r"__global__\s+void\s+__launch_bounds__\s*\((\w+)(?:, \d+)?\)\s*(\w+)\s*\(")
CONSTANT = re.compile(r"constexpr int (\w+) = (\d+);")


def tool(name):
    """The path of a tool of the CUDA toolkit, or of its package on PyPI."""
    folders = ["/usr/local/cuda/bin"] + [str(found) for folder in sys.path for found in sorted(pathlib.Path(folder).glob("nvidia/*/bin"))]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))


IMPORTS = "import glob, sys; sys.exit(not any(glob.glob(each + '/nvidia/*/bin/cuobjdump') for each in sys.path))"


def with_tools(build):
    """Without the tools, runs this program again with a Python that has their packages, and returns its exit code; else None."""
    if tool("cuobjdump") and tool("nvdisasm"):
        return None
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "interop"))
    from packages import python_with_packages
    python, why = python_with_packages(build, "cuda-tools-python", ["nvidia-cuda-cuobjdump", "nvidia-cuda-nvdisasm"], IMPORTS)
    if python is None:
        print("skipped: cuobjdump and nvdisasm are not installed (CUDA toolkit, cuda-cuobjdump and cuda-nvdisasm): " + why)
        return 77
    return subprocess.run([python, *sys.argv]).returncode


def bounds_of(root):
    """The maximum number of threads per block, by the kernel's name."""
    texts = [path.read_text() for folder in ("kernels/cuda", "kernels/shared") for path in (root / folder).glob("*.*")]
    constants = {name: int(value) for text in texts for name, value in CONSTANT.findall(text)}
    return {name: int(bound) if bound.isdigit() else constants[bound] for text in texts for bound, name in KERNEL.findall(text)}


def usages(text):
    """(architecture, mangled name, registers) from cuobjdump's output."""
    architecture = name = ""
    for line in text.splitlines():
        if found := re.search(r"arch = (\w+)", line):
            architecture = found[1]
        elif found := re.search(r"Function (\S+):", line):
            name = found[1]
        elif found := re.search(r"\bREG:(\d+)", line):
            yield architecture, name, int(found[1])


def main():
    if len(sys.argv) > 3:
        code = with_tools(sys.argv.pop())
        if code is not None:
            return code
    cuobjdump = tool("cuobjdump")
    if not cuobjdump:
        print("skipped: cuobjdump is not installed (CUDA toolkit, cuda-cuobjdump, or nvidia-cuda-cuobjdump of PyPI)")
        return 77
    bounds = bounds_of(pathlib.Path(sys.argv[1]))
    dump = subprocess.run([cuobjdump, "--dump-resource-usage", sys.argv[2]], capture_output=True, text=True)
    if dump.returncode != 0:
        print(dump.stderr)
        return 1
    problems, architectures, count = [], set(), 0
    for architecture, function, registers in usages(dump.stdout):
        names = [name for name in bounds if f"{len(name)}{name}" in function]
        count += 1
        architectures.add(architecture)
        if not names:
            problems.append(f"{function} is no kernel of kernels/cuda")
            continue
        threads = bounds[max(names, key=len)]
        used = -(-registers // UNIT) * UNIT * threads
        if used > REGISTERS_MAX:
            problems.append(f"{architecture} {function}: {registers} registers of {threads} threads are {used}")
    if count == 0:
        problems.append("cuobjdump named no kernel")
    print("\n".join(problems) or f"{count} kernels of {', '.join(sorted(architectures))} fit")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
