#!/usr/bin/env python3
"""The machine code of the CUDA kernels, without a GPU: prints a table of all of them and fails for a kernel that cannot
be launched, accesses memory in smaller pieces than it should, or has local memory. A compiler that splits the stores, or
puts an array into local memory, costs half of a kernel's speed, and no test of results sees it.

Columns: architecture, registers x threads of the largest block, bytes of stack (arrays in local memory, spills), widest
load and store of global memory in bits, loads and stores of local memory, the kernel. For the kernels that use tensor
cores also the wavefronts of shared memory per product of the main loop, by a model: a warp's access of 16 bytes a lane
takes 4, of 8 bytes 2, ldmatrix one for each matrix.

usage: machine_code.py ROOT LIBRARY [FUSED_CHAINS [BUILD]]   (FUSED_CHAINS: the program that compiles fused chains;
BUILD: as of registers.py)
"""
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import registers
from registers import tool

HALF = r"(?:flow::kernels::)?(?:Half|Brain)"

# Kernels whose loads (first number) and stores must be at least this wide, in bits; the first pattern that matches the
# name decides. 0: not checked, for the reason in the comment.
WIDTHS = [
    (r"^each_kernel<1, ", 0, 0),                                  # for operands that allow no packs
    (r"^each_kernel<\d+, FillOp", 0, 128),                        # loads nothing
    (r"^each_kernel<2, Compare\w*Op<(?:long|double)", 128, 16),   # stores a byte for each 8
    (r"^each_kernel<4, Compare\w*Op", 128, 32),                   # a byte for each 4
    (r"^each_kernel<8, Compare\w*Op", 128, 64),                   # a byte for each 2
    (r"^each_kernel<4, CastOp<(?:Bool|unsigned char)", 32, 128),  # reads a byte for up to 8
    (rf"^each_kernel<4, CastOp<{HALF}", 64, 128),
    (r"^each_kernel<\d+, FusedOp", 0, 128),                       # the interpreter: an operand is read where it is used
    (r"^each_kernel<", 128, 128),
    (r"^softmax(?:_backward)?_kernel<", 128, 128),
    (r"^cross_entropy_kernel<", 128, 0),                          # stores one number for each row
    (r"^cross_entropy_backward_kernel<", 128, 128),
    (rf"^norm_kernel<float, {HALF}, true>", 128, 64),             # stores 2 bytes for each 4
    (rf"^norm_kernel<float, {HALF}, false>", 128, 32),            # the same of rows that do not fit into registers
    (rf"^norm_rows_kernel<float, {HALF}", 128, 64),
    (r"^(?:norm|norm_rows|add_norm_rows)_kernel<", 128, 128),
    (r"^norm_backward_(?:parts_)?kernel<", 128, 128),
    (r"^reduce_kernel<1, ", 0, 0),
    (r"^reduce_kernel<", 128, 0),
    (r"^reduce_columns_kernel<", 128, 0),
    (r"^squares_kernel<1, ", 0, 0),
    (r"^squares_kernel<", 128, 0),
    (r"^gather_rows_kernel<Sixteen", 128, 128),
    (r"^(?:add|join)_rows_kernel<1, ", 0, 0),
    (r"^(?:add|join)_rows_kernel<", 128, 128),
    (r"^numbers_kernel<(?:int|float|long|double), (?:Bernoulli|Uniform)", 0, 128),
    (r"^rotary_kernel<1, ", 0, 0),
    (r"^rotary_kernel<", 128, 128),
    (r"^decode_kernel<1, ", 0, 0),                                # for rows that allow no packs
    (r"^decode_kernel<", 128, 0),                                 # stores one number for each row and column
    (r"^fused_\d+_\w+_kernel", 128, 128),
    (r"^tensor_\w+_kernel<", 0, 128),                             # loads are asynchronous copies to shared memory
]
# Every kernel of these must be there: a name that no longer exists checks nothing.
NAMED = ("each_kernel", "softmax_kernel", "softmax_backward_kernel", "cross_entropy_kernel", "cross_entropy_backward_kernel",
         "norm_kernel", "norm_rows_kernel", "add_norm_rows_kernel", "norm_backward_kernel", "norm_backward_parts_kernel",
         "reduce_kernel", "reduce_columns_kernel", "squares_kernel", "gather_rows_kernel", "add_rows_kernel", "rotary_kernel", "tensor_attention_kernel",
         "tensor_queries_backward_kernel", "tensor_keys_backward_kernel", "decode_kernel")

# Kernels that may have local memory, up to so many bytes of stack, and why. The first that matches decides.
TRIGONOMETRY = "sin and cos of large angles reduce them with a table in local memory; other angles do not use it"
SPILLS = "the compiler stays at 64 registers, for more warps, and keeps some numbers of a row or a thread in local memory"
CUDA_CORES = "the result of a row is in an array over the loop that ends early; "
LOCAL = [
    (r"^each_kernel<\d+, Unary(?:Backward)?Op<", 64, TRIGONOMETRY),
    (r"^fused_13_\w+_kernel", 64, TRIGONOMETRY),
    (r"^angles_kernel<", 64, TRIGONOMETRY),
    (r"^each_kernel<\d+, FusedOp<", 512, "the interpreter of chains, where NVRTC is missing: its temporaries are indexed at run time"),
    (r"^(?:attention|queries_backward|keys_backward)_kernel<", 1024, CUDA_CORES + "attention that tensor cores do not take"),
    (r"^gemm_kernel<", 64, CUDA_CORES + "products and convolutions where cuBLASLt and cuDNN are missing"),
    (r"^tensor_queries_backward_kernel<128, 2", 8, "on sm_80, two numbers of a thread: all registers are in use"),
    (r"^tensor_(?:queries|keys)_backward_kernel<256, 1", 24, "some numbers of a thread: all registers are in use"),
    (r"^reduce(?:_columns)?_kernel<", 40, SPILLS),
    (r"^add_rows_kernel<1, double>", 8, SPILLS),
    (r"^sample_kernel<", 16, "one random number for each row, from a block of four words that is indexed at run time"),
    (r"^norm_kernel<\w+, \w+, false>", 48, SPILLS + "; rows that are too long or not aligned for registers"),
    (r"^norm_backward_kernel<(?:double|float), ", 24, SPILLS),
    (r"^softmax(?:_backward)?_kernel<double", 40, SPILLS),
    (rf"^softmax_kernel<{HALF}, false>", 32, SPILLS),
    (rf"^add_norm_rows_kernel<{HALF}, {HALF}, 2>", 8, "the compiler stays at 80 registers, for three blocks; on sm_80"),
    (r"^cross_entropy_kernel<double>", 72, SPILLS),
    (r"^cross_entropy_backward_kernel<Half>", 16, SPILLS),
]
# Wavefronts per product of the main loop, at most. A fragment that a warp loads is used for two of its own: 1 wavefront. Heads
# too wide for that, and the kernels for few blocks, use it once: 2. What is more is for own rows that do not stay in registers, and for the numbers of rows.
WAVEFRONTS = [
    (r"^tensor_attention_kernel<64, 2", 1.1),
    (r"^tensor_attention_kernel<128, 2", 1.3),
    (r"^tensor_attention_kernel<", 2.1),
    (r"^tensor_queries_backward_kernel<64, 2", 1.15),
    (r"^tensor_queries_backward_kernel<128, 2", 1.75),
    (r"^tensor_queries_backward_kernel<", 2.5),
    (r"^tensor_keys_backward_kernel<64, 2", 1.8),
    (r"^tensor_keys_backward_kernel<", 2.6),
]


def demangled(names):
    if not tool("c++filt"):
        return dict(zip(names, names))
    text = subprocess.run([tool("c++filt")], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return dict(zip(names, map(short, text.splitlines())))


def short(name):
    name = re.sub(r"\(anonymous namespace\)::|flow::(?:cuda|kernels)::|^void ", "", name)
    depth = 0
    for i, c in enumerate(name):  # without the parameters
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            return name[:i]
    return name


class Code:
    """The accesses of one kernel to memory."""
    ACCESS = re.compile(r"^(LDG|STG|LDL|STL)(\.\S+)?$")
    ADDRESS = re.compile(r"/\*([0-9a-f]{4,})\*/")

    def __init__(self):
        self.load, self.store, self.local = 0, 0, 0
        self.shared = []  # (address, "product" or wavefronts)
        self.jumps = []   # (from, to)

    def add(self, line):
        fields = line.split("*/", 1)
        if len(fields) < 2:
            return
        words = fields[1].replace(";", " ").split()
        if words and words[0].startswith("@"):
            words = words[1:]
        if not words:
            return
        code = words[0]
        if found := self.ACCESS.match(code):
            self.access(found[1], found[2] or "")
        elif code.startswith(("LDS", "STS", "HMMA", "BRA")):
            at = int(self.ADDRESS.search(line)[1], 16)
            if code.startswith("HMMA"):
                self.shared.append((at, "product"))
            elif code.startswith("BRA"):
                if target := re.search(r"0x([0-9a-f]+)", " ".join(words[1:])):
                    self.jumps.append((at, int(target[1], 16)))
            else:
                self.shared.append((at, self.wavefronts(code)))

    @staticmethod
    def wavefronts(code):
        if code.startswith("LDSM"):
            return 4 if code.endswith(".4") else 2 if code.endswith(".2") else 1
        return 4 if ".128" in code else 2 if ".64" in code else 1

    def access(self, kind, parts):
        if kind in ("LDL", "STL"):
            self.local += 1
            return
        bits = 32
        for part in parts.split("."):
            bits = {"128": 128, "64": 64, "U8": 8, "S8": 8, "U16": 16, "S16": 16}.get(part, bits)
        if kind == "LDG":
            self.load = max(self.load, bits)
        else:
            self.store = max(self.store, bits)

    def main_loop(self):
        """(wavefronts, products) of the innermost loop with the most products."""
        best = (0, 0)
        inner = [(to, at) for at, to in self.jumps if to < at]
        for first, last in inner:
            if any(first <= a and b <= last and (a, b) != (first, last) for a, b in inner):
                continue
            inside = [what for at, what in self.shared if first <= at <= last]
            products = sum(what == "product" for what in inside)
            if products > best[1]:
                best = (sum(what for what in inside if what != "product"), products)
        return best


LINES = r"Function : |arch = |code for |\b(LDG|STG|LDL|STL|LDS|LDSM|STS|HMMA|BRA)\b"  # of the output, which has some 100 MB


def codes(path):
    """{(architecture, mangled name): Code} of what cuobjdump prints."""
    found, architecture, code = {}, "", None
    with subprocess.Popen([tool("cuobjdump"), "-sass", path], stdout=subprocess.PIPE) as dump, \
         subprocess.Popen(["grep", "-E", LINES], stdin=dump.stdout, stdout=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C"}) as lines:
        for line in lines.stdout:
            if "Function : " in line:
                code = found.setdefault((architecture, line.split("Function : ")[1].strip()), Code())
            elif match := re.search(r"(?:arch = |code for )(sm_\w+)", line):
                architecture, code = match[1], None
            elif code is not None:
                code.add(line)
    return found if dump.returncode == 0 else {}


def usages(path):
    """{(architecture, mangled name): (registers, stack)}"""
    text = subprocess.run([tool("cuobjdump"), "--dump-resource-usage", path], capture_output=True, text=True, check=True).stdout
    found, name = {}, ""
    architecture = f"sm_{path.removesuffix('.cubin').rpartition('_')[2]}"  # of a single cubin; a library says it
    for line in text.splitlines():
        if match := re.search(r"arch = (\w+)", line):
            architecture = match[1]
        elif match := re.search(r"Function (\S+):", line):
            name = match[1]
        elif match := re.search(r"REG:(\d+) STACK:(\d+)", line):
            found[architecture, name] = (int(match[1]), int(match[2]))
    return found


class Table:
    def __init__(self, bounds):
        self.bounds, self.problems, self.lines, self.seen = bounds, [], [], collections.Counter()
        self.excused = collections.Counter()

    def threads_of(self, function):
        names = [name for name in self.bounds if f"{len(name)}{name}" in function]
        return self.bounds[max(names, key=len)] if names else 256 if function.startswith("fused_") else 0

    def add(self, architecture, function, name, registers_, stack, code):
        threads = self.threads_of(function)
        problem = lambda text: self.problems.append(f"{architecture} {name}: {text}")
        if threads == 0:
            problem("is no kernel of kernels/cuda")
        used = -(-registers_ // registers.UNIT) * registers.UNIT * threads
        if used > registers.REGISTERS_MAX:
            problem(f"{registers_} registers of {threads} threads are {used}")
        self.seen[name.partition("<")[0]] += 1
        load, store = next(((low, high) for pattern, low, high in WIDTHS if re.search(pattern, name)), (0, 0))
        if code.load < load:
            problem(f"its widest load has {code.load} bits, not {load}")
        if code.store < store:
            problem(f"its widest store has {code.store} bits, not {store}")
        if stack > 0 or code.local > 0:
            reason = next((i for i, (pattern, _, _) in enumerate(LOCAL) if re.search(pattern, name)), None)
            if reason is None or stack > LOCAL[reason][1]:
                problem(f"it has {stack} bytes of stack and {code.local} accesses of local memory")
            else:
                self.excused[reason] += 1
        wavefronts, products = code.main_loop()
        shared = ""
        if products > 0:
            shared = f"  {wavefronts} wavefronts for {products} products"
            most = next((most for pattern, most in WAVEFRONTS if re.search(pattern, name)), 0)
            if wavefronts > most * products:
                problem(f"its main loop has {wavefronts} wavefronts of shared memory for {products} products")
        self.lines.append(f"{architecture:6} {registers_:3} x {threads:4} {stack:5} {code.load:4} {code.store:4} {code.local:4}  {name}{shared}")

    def add_all(self, path):
        used, found = usages(path), codes(path)
        names = demangled(sorted({function for _, function in used}))
        for architecture, function in sorted(used, key=lambda key: (names[key[1]], key[0])):
            if (architecture, function) not in found:
                self.problems.append(f"{architecture} {names[function]}: no machine code was found")
                continue
            self.add(architecture, function, names[function], *used[architecture, function], found[architecture, function])

    def finish(self, has_chains):
        for name in NAMED:
            if self.seen[name] == 0:
                self.problems.append(f"{name} was not found")
        for i, (pattern, _, reason) in enumerate(LOCAL):
            is_chain = pattern.startswith("^fused")
            if self.excused[i] == 0 and (has_chains or not is_chain):
                print(f"no kernel needs the exception {pattern}")
        print("arch   registers stack load store local  kernel")
        print("\n".join(self.lines))
        print()
        for i, (pattern, _, reason) in enumerate(LOCAL):
            print(f"local memory in {self.excused[i]} of {pattern}: {reason}")
        print("\n".join(self.problems) or f"{len(self.lines)} kernels, and each exception has its reason")
        return 1 if self.problems else 0


def main():
    if len(sys.argv) > 4:
        code = registers.with_tools(sys.argv.pop())
        if code is not None:
            return code
    if not tool("cuobjdump") or not tool("nvdisasm"):
        print("skipped: cuobjdump and nvdisasm are not installed (CUDA toolkit, cuda-cuobjdump and cuda-nvdisasm, or nvidia-cuda-cuobjdump and "
              "nvidia-cuda-nvdisasm of PyPI)")
        return 77
    os.environ["PATH"] += os.pathsep + os.path.dirname(tool("nvdisasm"))  # cuobjdump starts it
    table = Table(registers.bounds_of(pathlib.Path(sys.argv[1])))
    table.add_all(sys.argv[2])
    has_chains = False
    if len(sys.argv) > 3:
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run([sys.argv[3], "cubins", folder], capture_output=True, text=True)
            print(made.stdout, end="")
            has_chains = made.returncode == 0
            if made.returncode not in (0, 77):
                table.problems.append(f"fused_chains failed: {made.stdout}{made.stderr}")
            for path in sorted(pathlib.Path(folder).iterdir()):
                table.add_all(str(path))
    return table.finish(has_chains)


if __name__ == "__main__":
    sys.exit(main())
