#!/usr/bin/env python3
"""The Debian package in a fresh Debian: apt installs it with what it depends on, the guide's first pipelines run for a
user who is not root, and its removal leaves nothing. Skipped (77) without root, mmdebstrap or Debian's archive.

usage: deb.py CPACK BUILD_FOLDER
"""
import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from fresh_debian import USER, FreshDebian, remove, require, run

BUILD_PACKAGES = r"(?m)^(?:\S+-dev|build-essential|gcc|gcc-\d+|g\+\+\S*|cmake|python3|lua5\.4)$"
COMPLETE = """source /usr/share/bash-completion/completions/flow
COMP_WORDS=(flow "$@") COMP_CWORD=$#
_flow
echo "${COMPREPLY[@]}"
"""
PRODUCT = """local flow = require "flow"
local product = flow.task("product", function() return flow.ones(64, 64):matmul(flow.ones(64, 64))[1][1] end)
return flow.pipeline("product", {}, function() return product() end)
"""


def expect(holds, what, seen=""):
    if not holds:
        sys.exit(f"failed: {what}\n{seen}")


def packed(cpack, build, folder):
    """The packages of the build by name: `flow`, and `libflow-dev` if the library is built."""
    done = run([cpack, "--config", f"{build}/CPackConfig.cmake", "-G", "DEB", "-B", folder])
    expect(done.returncode == 0, "cpack", done.stdout + done.stderr)
    packages = {path.name.split("_")[0]: path for path in pathlib.Path(folder).glob("*.deb")}
    names = {"flow", "libflow-dev"} if list(pathlib.Path(build).glob("libflow.so.*")) else {"flow"}
    expect(set(packages) == names, "the packages of the build", packages)
    return packages


def check_fields(package):
    fields = {name: run(["dpkg-deb", "-f", str(package), name]).stdout.strip()
              for name in ("Package", "Version", "Architecture", "Depends", "Recommends", "Suggests", "Section", "Maintainer", "Description")}
    version = re.search(r"\(([\d.]+)-\d+\)", gzip.decompress(member(package, "usr/share/doc/flow/changelog.Debian.gz")).decode())
    expect(fields["Package"] == "flow" and fields["Version"].rsplit("-", 1)[0] == version[1], "name and version", fields)
    expect(re.search(r"\blibc6 \(>= [\d.]+\)", fields["Depends"]) and "librocksdb" in fields["Depends"], "computed dependencies", fields)
    expect("libopenblas0" in fields["Depends"], "the dependency on a library that is loaded", fields)
    expect(not re.search("cuda|cublas|nvidia", fields["Depends"] + fields["Recommends"]), "no driver or toolkit comes with it", fields)
    expect(all(value for name, value in fields.items() if name != "Recommends"), "no empty field", fields)
    control = names_of(package, "--ctrl-tarfile")
    expect({"./control", "./md5sums"} <= set(control) <= {"./", "./control", "./md5sums"}, "no scripts and no configuration files", control)


def tar_of(package, option):
    return subprocess.run(["dpkg-deb", option, str(package)], capture_output=True, check=True).stdout


def names_of(package, option):
    return subprocess.run(["tar", "-t"], input=tar_of(package, option), capture_output=True, check=True).stdout.decode().split()


def member(package, path):
    return subprocess.run(["tar", "-xO", f"./{path}"], input=tar_of(package, "--fsys-tarfile"), capture_output=True, check=True).stdout


def check_installed(debian, version):
    expect(not re.search(BUILD_PACKAGES, debian.good("dpkg-query", "-W", "-f", "${Package}\\n")), "no package of a build is installed")
    expect(debian.good("flow", "--version", user=USER) == f"flow {version}\n", "the version")
    for program in ("flow", "flow-executor", "flow-front"):
        sections = run(["readelf", "-S", "-W", str(debian.root / "usr/bin" / program)]).stdout
        expect(".text" in sections and ".symtab" not in sections and ".debug_info" not in sections, f"{program} is stripped", sections)
    doctor = debian.run("flow", "doctor", user=USER)
    expect(doctor.returncode == 0, "flow doctor", doctor.stdout + doctor.stderr)


def check_pipelines(debian):
    """The guide's first pipelines, and products of matrices, which load OpenBLAS."""
    def flow(*words):
        return debian.good("flow", *words, user=USER)

    home = debian.root / "home/user"
    flow("init", "hello")
    settings = json.loads((home / "hello/.luarc.json").read_text())
    expect(settings["workspace.library"] == ["/usr/share/flow/library"], "the annotations for editors", settings)
    expect("4 tasks: 0 cached" in flow("run", "hello"), "the pipeline of flow init")
    expect("4 tasks: 4 cached" in flow("run", "hello"), "its second run")
    guide = (debian.root / "usr/share/doc/flow/docs/guide.md").read_text()
    first = next(block for block in re.findall(r"```lua\n(.*?)```", guide, re.DOTALL) if 'flow.pipeline("first"' in block)
    (home / "pipeline.lua").write_text(first)
    (home / "product.lua").write_text(PRODUCT)
    flow("run", "pipeline.lua")
    expect(flow("get") == "42\n", "the guide's first pipeline")
    flow("run", "pipeline.lua", "--param", "n=7")
    expect(flow("get") == "16\n", "its parameter")
    expect("double" in flow("plan", "pipeline.lua"), "its plan")
    flow("run", "product.lua")
    expect(float(flow("get")) == 64, "a product of matrices")
    for example in ("hello.lua", "shell.lua", "word_count.lua"):
        flow("run", f"/usr/share/doc/flow/examples/{example}")


def check_library(debian):
    """What a build of a host program needs. tests/embed builds one with an installation."""
    expect("libflow.so.0 " in debian.good("/sbin/ldconfig", "-p"), "the linker's cache has the library")
    for program in ("flow-executor", "flow-front"):
        found = debian.good("readlink", "-e", f"/usr/lib/flow/{program}")
        expect(found == f"/usr/bin/{program}\n", f"the library finds {program}", found)
    for path in ("include/flow/flow.hpp", "lib/libflow.so", "lib/cmake/flow/flowConfig.cmake", "lib/pkgconfig/flow.pc"):
        expect((debian.root / "usr" / path).is_file(), f"libflow-dev has {path}")


def check_documents(debian):
    verbs = re.findall(r"^  ([a-z]+) ", debian.good("flow", "--help").split("Subcommands:")[1], re.MULTILINE)
    pages = debian.root / "usr/share/man/man1"
    expect({path.name for path in pages.glob("flow*")} == {"flow.1.gz", "flow-executor.1.gz"} | {f"flow-{verb}.1.gz" for verb in verbs}, "a manual page for each verb")
    for page in pages.glob("flow*"):
        expect(".SH NAME" in gzip.decompress(page.read_bytes()).decode(), f"{page} is a page")
    if shutil.which("man"):
        shown = run(["man", "-M", str(pages.parent), "flow-run"], env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "100"})
        expect("flow-run - run a pipeline to its end" in shown.stdout and "--fail-fast" in shown.stdout, "man shows a page", shown.stdout + shown.stderr)
    for words, found in ((["re"], "resume retry repl report"), (["run", "--fail"], "--fail-fast"), (["completion", "z"], "zsh")):
        seen = debian.good("bash", "-c", COMPLETE, "bash", *words)
        expect(sorted(seen.split()) == sorted(found.split()), f"bash completes {words}", seen)
    for shell, path in (("zsh", "zsh/vendor-completions/_flow"), ("fish", "fish/vendor_completions.d/flow.fish")):
        expect((debian.root / "usr/share" / path).read_text() == debian.good("flow", "completion", shell), f"the completion for {shell}")


def main():
    cpack, build = sys.argv[1:]
    require()
    folder = tempfile.mkdtemp(prefix="flow-package-")
    try:
        packages = packed(cpack, build, f"{folder}/packed")
        check_fields(packages["flow"])
        debian = FreshDebian(folder)
        debian.good("apt-get", "update", "-q")
        for package in packages.values():
            shutil.copy(package, debian.root / "tmp")
        before = debian.paths()
        debian.good("apt-get", "install", "-q", "-y", "--no-install-recommends", f"/tmp/{packages['flow'].name}")
        check_installed(debian, packages["flow"].name.split("_")[1].rsplit("-", 1)[0])
        check_pipelines(debian)
        check_documents(debian)
        if "libflow-dev" in packages:
            debian.good("apt-get", "install", "-q", "-y", "--no-install-recommends", f"/tmp/{packages['libflow-dev'].name}")
            check_library(debian)
        debian.good("apt-get", "purge", "-q", "-y", "--autoremove", *packages)
        left = sorted(debian.paths() - before)
        expect(not left, "the removal leaves nothing", "\n".join(left))
        expect(before <= debian.paths(), "the removal removes nothing else", "\n".join(before - debian.paths()))
    finally:
        remove(folder)
    print("the package installs, runs and is removed")


if __name__ == "__main__":
    main()
