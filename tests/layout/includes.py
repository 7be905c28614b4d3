#!/usr/bin/env python3
"""Reads every #include of the source against the table of who may know whom."""
import pathlib
import re
import sys

PUBLIC = ["flow"]
# folder: (folders or single headers of ours, foreign headers by prefix) that it may include. Its own
# are always allowed.
ALLOWED = {
    "engine/include": (PUBLIC, []),
    "engine/base": (PUBLIC, ["openssl/", "fmt/", "nlohmann/", "sodium.h"]),
    "engine/plan": (PUBLIC + ["engine/base"], ["fmt/"]),
    "engine/core": (PUBLIC + ["engine/base", "engine/plan"], ["fmt/"]),
    "engine/sched": (PUBLIC + ["engine/base", "engine/plan", "engine/core"], ["fmt/"]),
    "engine/store": (PUBLIC + ["engine/base", "engine/plan", "engine/core"], ["fmt/", "rocksdb/", "google/protobuf/", "spdlog/"]),
    "engine/serve": (PUBLIC + ["engine/base"], ["fmt/", "httplib.h"]),
    "engine/cluster": (PUBLIC + ["engine/base", "engine/plan", "engine/core", "engine/worker/slot.hpp", "engine/worker/worker.hpp",
                                 "engine/executor/wire.hpp", "engine/executor/protocol.pb.h"], ["fmt/"]),
    "engine/executor": (PUBLIC + ["engine/base", "engine/plan", "engine/core", "engine/serve/serve.hpp", "lua/script.hpp",
                                 "kernels/cuda/device.hpp", "kernels/tensor/runtime.hpp",
                                 "transports/collective/collective.hpp", "transports/nccl/nccl.hpp", "transports/ucx/ucx.hpp"], ["fmt/"]),
    "engine/worker": (PUBLIC + ["engine/base", "engine/plan", "engine/core", "engine/executor/wire.hpp",
                                "engine/executor/protocol.pb.h"], ["fmt/"]),
    "engine/driver": (PUBLIC + ["engine/base", "engine/plan", "engine/core", "engine/sched", "engine/store",
                                "engine/worker/gpus.hpp", "engine/worker/gpu_watch.hpp", "engine/worker/worker.hpp", "engine/cluster", "lua/script.hpp",
                                "transports/nccl/nccl.hpp", "transports/ucx/ucx.hpp"], ["fmt/"]),
    "engine/cli": (PUBLIC, ["CLI/"]),
    "lua": (PUBLIC + ["engine/base", "engine/plan", "kernels"], ["fmt/", "lua.hpp", "nlohmann/", "zlib.h"]),
    "kernels": (PUBLIC + ["engine/base"], ["cblas.h", "fmt/", "cuda_runtime.h", "cublasLt.h"]),
    "transports": (PUBLIC + ["engine/base"], ["fmt/", "ucp/", "nccl.h"]),
    "examples/embed": (PUBLIC, []),
}
# Headers of these are foreign; anything else in <> is the standard library, POSIX or Linux.
FOREIGN = ["openssl/", "fmt/", "nlohmann/", "rocksdb/", "google/", "spdlog/", "CLI/", "lua.h", "lua.hpp", "lauxlib.h",
           "httplib.h", "cblas.h", "zlib.h", "ucp/", "nccl.h", "sodium.h", "cuda", "cublas", "catch2/"]
GENERATED = {"flow_build_config.hpp"}


def problems_of(path, root, folder, ours, foreign):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if not found:
            continue
        name = found.group(2)
        where = f"{path.relative_to(root)}:{number}"
        if found.group(1) == '"' or name.startswith("flow/"):
            allowed = [folder] + ours
            beside = (path.parent / name).exists()
            if name not in GENERATED and not beside and not any(name == each or name.startswith(each + "/") for each in allowed):
                yield f"{where}: {folder} may not know {name}"
        elif any(name.startswith(each) for each in FOREIGN) and not any(name.startswith(each) for each in foreign):
            yield f"{where}: {folder} may not include <{name}>"


def main():
    root = pathlib.Path(sys.argv[1])
    problems, files = [], 0
    for folder in sorted(path.name for path in (root / "engine").iterdir() if path.is_dir()):
        if f"engine/{folder}" not in ALLOWED:
            problems.append(f"engine/{folder}: no row says what it may include")
    for folder, (ours, foreign) in ALLOWED.items():
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".cc", ".hpp", ".h", ".cu", ".cuh"):
                files += 1
                problems += problems_of(path, root, folder, ours, foreign)
    print("\n".join(problems) or f"{files} files include what they may")
    return 1 if problems or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
