#!/usr/bin/env python3
"""Reads every #include of the source against the table of who may know whom."""
import pathlib
import re
import sys

PUBLIC = ["flow"]
# folder: (folders of ours, foreign headers by prefix) that it may include. Its own are always allowed.
ALLOWED = {
    "engine/include": (PUBLIC, []),
    "engine/base": (PUBLIC, ["openssl/", "fmt/", "nlohmann/"]),
    "engine/plan": (PUBLIC + ["engine/base"], ["fmt/"]),
    "engine/core": (PUBLIC + ["engine/base", "engine/plan"], ["fmt/"]),
    "engine/sched": (PUBLIC + ["engine/base", "engine/plan", "engine/core"], ["fmt/"]),
    "engine/store": (PUBLIC + ["engine/base", "engine/plan", "engine/core"], ["fmt/", "rocksdb/", "google/protobuf/", "spdlog/"]),
    "engine/cli": (PUBLIC, ["CLI/"]),
    "lua": (PUBLIC + ["engine/base", "engine/plan", "kernels"], ["fmt/", "lua.hpp", "nlohmann/", "zlib.h"]),
    "kernels": (PUBLIC + ["engine/base"], ["cblas.h"]),
    "transports": (PUBLIC + ["engine/base"], ["ucp/", "nccl.h"]),
    "examples/embed": (PUBLIC, []),
}
# Headers of these are foreign; anything else in <> is the standard library, POSIX or Linux.
FOREIGN = ["openssl/", "fmt/", "nlohmann/", "rocksdb/", "google/", "spdlog/", "CLI/", "lua.h", "lua.hpp", "lauxlib.h",
           "httplib.h", "cblas.h", "zlib.h", "ucp/", "nccl.h", "cuda", "catch2/"]
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
            if name not in GENERATED and not beside and not name.endswith(".pb.h") and not any(name.startswith(each + "/") for each in allowed):
                yield f"{where}: {folder} may not know {name}"
        elif any(name.startswith(each) for each in FOREIGN) and not any(name.startswith(each) for each in foreign):
            yield f"{where}: {folder} may not include <{name}>"


def main():
    root = pathlib.Path(sys.argv[1])
    problems, files = [], 0
    for folder, (ours, foreign) in ALLOWED.items():
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".cc", ".hpp", ".h", ".cu"):
                files += 1
                problems += problems_of(path, root, folder, ours, foreign)
    print("\n".join(problems) or f"{files} files include what they may")
    return 1 if problems or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
