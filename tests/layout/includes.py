#!/usr/bin/env python3
"""Checks every #include of the sources against the dependencies that are allowed between
folders."""
import pathlib
import re
import sys

# The folders of engine/ in dependency order, and the foreign headers of each, by prefix. A folder
# may include itself, the public headers, and the folders above it.
ENGINE = [
    ("engine/include/flow", []),
    ("engine/base", ["fmt/", "nvtx3/"]),
    ("engine/crypto", ["openssl/", "sodium.h"]),
    ("engine/process", ["fmt/"]),
    ("engine/value", ["fmt/", "nlohmann/"]),
    ("engine/config", ["fmt/", "toml++/"]),
    ("engine/log", ["fmt/", "spdlog/"]),
    ("engine/blobs", ["fmt/"]),
    ("engine/fetch", ["fmt/", "curl/"]),
    ("engine/plan", ["fmt/"]),
    ("engine/environments", ["fmt/"]),
    ("engine/costs", ["fmt/"]),
    ("engine/core", ["fmt/"]),
    ("engine/sched", ["fmt/"]),
    ("engine/protocol", ["fmt/", "google/protobuf/"]),
    ("engine/store", ["fmt/", "rocksdb/", "google/protobuf/"]),
    ("engine/runs", ["fmt/"]),
    ("engine/worker", ["fmt/"]),
    ("engine/serve/http", ["fmt/", "boost/asio/", "boost/asio.hpp", "boost/beast/", "openssl/", "zlib.h"]),
    ("engine/serve/json", ["fmt/"]),
    ("engine/serve", ["fmt/", "openssl/", "simdjson.h"]),
    ("engine/serve/grpc", ["fmt/", "google/protobuf/", "grpc/support/", "grpcpp/"]),
    ("engine/cluster/session", ["fmt/"]),
    ("engine/relay", ["fmt/", "boost/asio/"]),
    ("engine/front", ["fmt/", "boost/asio/"]),
    ("engine/executor", ["fmt/"]),
    ("engine/cluster/transfer", ["fmt/"]),
    ("engine/cluster/worker", ["fmt/"]),
    ("engine/cluster/slurm", ["fmt/"]),
    ("engine/telemetry", ["fmt/"]),
    ("engine/submission", ["fmt/"]),
    ("engine/runtime", ["fmt/"]),
    ("engine/query", ["fmt/"]),
    ("engine/exports", ["fmt/"]),
    ("engine/head", ["fmt/"]),
    ("engine/client", ["fmt/"]),
    ("engine/page", ["fmt/"]),
    ("engine/report", ["fmt/", "zlib.h"]),
    ("engine/api", ["fmt/"]),
]
# Folders that implement the engine's ports may include these too.
FOUNDATION = ["engine/base", "engine/crypto", "engine/process", "engine/value", "engine/blobs"]
# Each may include the ones before it.
LUA = ["lua/state", "lua/sandbox", "lua/tensor", "lua/library", "lua/graph", "lua/context", "lua/vm"]
PORTS = {
    "kernels": (FOUNDATION, ["cblas.h", "fmt/", "cuda_runtime.h", "cublasLt.h"]),
    "transports": (FOUNDATION, ["fmt/", "ucp/", "nccl.h"]),
    **{folder: (FOUNDATION + ["engine/plan", "kernels"] + LUA[:number], ["fmt/", "lua.hpp", "nlohmann/", "zlib.h"])
       for number, folder in enumerate(LUA)},
}
# Folders that assemble a program; only these in engine/ use the implementations of the ports.
ASSEMBLERS = ["engine/executor", "engine/api"]
# The command line and embedding programs include only the public headers.
HOSTS = {
    "engine/cli/display": ([], ["CLI/"]),
    "engine/cli/manual": (["engine/cli/display"], ["CLI/"]),
    "engine/cli/publish": (["engine/cli/display"], ["CLI/"]),
    "engine/cli/costs": (["engine/cli/display"], ["CLI/"]),
    "engine/cli/top": (["engine/cli/display"], ["CLI/", "curses.h"]),
    "engine/cli/verbs": (["engine/cli/display", "engine/cli/manual", "engine/cli/publish", "engine/cli/costs", "engine/cli/top"], ["CLI/"]),
    "engine/cli": (["engine/cli/display", "engine/cli/verbs"], ["CLI/"]),
    "examples/embed": ([], []),
}
# Headers with these prefixes are foreign; any other <> header belongs to the standard library,
# POSIX or Linux.
FOREIGN = ["openssl/", "fmt/", "nlohmann/", "rocksdb/", "google/", "spdlog/", "curl/", "toml++/", "CLI/", "lua.h", "lua.hpp", "lauxlib.h",
           "grpc/", "grpcpp/", "boost/", "simdjson.h", "cblas.h", "zlib.h", "ucp/", "nccl.h", "sodium.h", "curses.h", "cuda", "cublas", "catch2/"]
GENERATED = {"flow_build_config.hpp"}
SUFFIXES = (".cc", ".hpp", ".h", ".cu", ".cuh")


def rules():
    """Folder: (folders that it may include, foreign headers that it may include, by prefix)."""
    table = {"engine/include": ([], [])}
    above = []
    for folder, foreign in ENGINE:
        ports = ["lua", "kernels", "transports"] if folder in ASSEMBLERS else []
        table[folder] = (above + ports, foreign)
        above = above + [folder]
    return {**table, **PORTS, **HOSTS}


def row_of(name, table):
    """The row for a file or a header: that of the innermost folder with a row."""
    folder = pathlib.PurePosixPath(name).parent
    return next((str(each) for each in [folder, *folder.parents] if str(each) in table), None)


def problems_of(path, root, table):
    name = str(path.relative_to(root))
    row = row_of(name, table)
    if row is None:
        yield f"{name}: no row says what its folder may include"
        return
    allowed, foreign = table[row]
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if not found:
            continue
        header = found.group(2)
        if found.group(1) == "<" and not header.startswith("flow/"):
            if any(header.startswith(each) for each in FOREIGN) and not any(header.startswith(each) for each in foreign):
                yield f"{name}:{number}: {row} may not include <{header}>"
            continue
        target = row_of(header, table)
        if header.startswith("flow/") or header in GENERATED or (path.parent / header).exists() or target == row:
            continue
        if target in allowed or (target and target.split("/")[0] in allowed):
            continue
        yield f"{name}:{number}: {row} may not include {header}"


def main():
    root = pathlib.Path(sys.argv[1])
    table = rules()
    tops = sorted({folder.split("/")[0] for folder in table} - {"examples"}) + ["examples/embed"]
    files = [path for top in tops for path in sorted((root / top).rglob("*")) if path.suffix in SUFFIXES]
    problems = [problem for path in files for problem in problems_of(path, root, table)]
    print("\n".join(problems) or f"{len(files)} files include what they may")
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
