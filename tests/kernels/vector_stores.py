#!/usr/bin/env python3
"""The kernels of rows and norms store 16 bytes by one instruction (8 if they round f32 to f16 or bf16), and keep their
rows in registers: a compiler that splits the stores, or puts an array into local memory, costs half of their speed and no
test of results sees it.

usage: vector_stores.py LIBRARY
"""
import re
import shutil
import subprocess
import sys

KERNELS = ("softmax_kernel", "softmax_backward_kernel", "cross_entropy_backward_kernel", "norm_kernel",
           "norm_backward_kernel", "norm_backward_parts_kernel")
MIXED = re.compile(r"norm_kernelIfN.*Lb1E")  # of f32 to f16 or bf16, from registers
STREAMED = re.compile(r"norm_kernelIfN.*Lb0E")  # rows too long for that, or not aligned: one element at a time
DOUBLE = re.compile(r"_kernelI?d")  # of f64, which may spill


def kernels(text):
    """(mangled name, its instructions) of what cuobjdump prints."""
    for part in text.split("Function : ")[1:]:
        name, _, code = part.partition("\n")
        yield name.strip(), code


def main():
    tools = [shutil.which(tool) or shutil.which(tool, path="/usr/local/cuda/bin") for tool in ("cuobjdump", "nvdisasm")]
    if not all(tools):
        print("skipped: cuobjdump and nvdisasm are not installed (CUDA toolkit, cuda-cuobjdump and cuda-nvdisasm)")
        return 77
    dump = subprocess.run([tools[0], "-sass", sys.argv[1]], capture_output=True, text=True)
    if dump.returncode != 0:
        print(dump.stderr)
        return 1
    seen, problems = set(), []
    for name, code in kernels(dump.stdout):
        kernel = max((each for each in KERNELS if f"{len(each)}{each}" in name), key=len, default=None)
        if not kernel:
            continue
        seen.add(kernel)
        width = 64 if MIXED.search(name) else 128
        if f"STG.E.{width}" not in code and not STREAMED.search(name):
            problems.append(f"{name} has no store of {width // 8} bytes")
        if kernel == "norm_backward_parts_kernel" and not DOUBLE.search(name) and re.search(r"\bSTL", code):
            problems.append(f"{name} has its sums in local memory")
    problems += [f"{kernel} was not found" for kernel in KERNELS if kernel not in seen]
    print("\n".join(problems) or f"{len(seen)} kernels store 16 bytes at once")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
