#!/usr/bin/env python3
"""cmake/setup for a user without sudo: packages and cmake are replaced by programs that only
answer."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

STAND_INS = {
    "id": "echo 1000",
    "apt-get": 'echo "apt-get $*" >>"$CALLS"; exit 1',
    "apt-cache": "exit 1",
    "dpkg-query": 'for lacking in $LACKING; do [ "$lacking" = "$4" ] && exit 1; done; printf installed',
    "cmake": 'echo "cmake $*" >>"$CALLS"',
    "timeout": 'shift; exec "$@"',
    "nvidia-smi": '[ "$GPUS" != broken ] && printf "%b" "$GPUS"',
    "cpack": 'echo "cpack $*" >>"$CALLS"; echo "CPack: - package: /packages/flow.deb generated."',
}


def setup(root, lacking, *words, cache=None, gpus="", **variables):
    """`cache`: that of the configuration which build/release has; `gpus`: the answer of nvidia-smi."""
    with tempfile.TemporaryDirectory() as folder:
        tree, tools, calls = (pathlib.Path(folder) / name for name in ("tree", "tools", "calls"))
        (tree / "cmake").mkdir(parents=True)
        shutil.copy(pathlib.Path(root) / "cmake" / "setup", tree / "cmake" / "setup")
        if cache is not None:
            (tree / "build" / "release").mkdir(parents=True)
            (tree / "build" / "release" / "build.ninja").touch()
            (tree / "build" / "release" / "CMakeCache.txt").write_text(cache)
        tools.mkdir()
        for name, body in STAND_INS.items():
            (tools / name).write_text(f"#!/bin/sh\n{body}\n")
            (tools / name).chmod(0o755)
        for name in ("dirname", "sed", "cat", "grep", "rm", "env", "realpath", "mkdir"):
            (tools / name).symlink_to(shutil.which(name))
        calls.touch()
        environment = {"PATH": str(tools), "CALLS": str(calls), "LACKING": lacking, "GPUS": gpus, **variables}
        done = subprocess.run([shutil.which("bash"), str(tree / "cmake" / "setup"), *(words or ["build"])],
                              env=environment, cwd=os.sep, capture_output=True, text=True)
        return done.returncode, done.stderr, calls.read_text()


def expect(holds, what, seen):
    if not holds:
        print(f"{what}; seen: {seen}")
        sys.exit(1)


def check_architectures(root):
    """run compiles the CUDA kernels for the machine's GPUs, and the other commands for all GPUs."""
    unknown = "all" if os.path.exists("/dev/nvidiactl") else "none"
    for gpus, needed in (("", "none"), ("7.5\\n", "none"), ("8.6\\n8.0\\n", "80-real"), ("9.0\\n", "90-real"), ("12.0\\n", "90-virtual"),
                         ("9.0\\n8.9\\n9.0\\n", "90-real;80-real"), ("[N/A]\\n", "all"), ("broken", unknown)):
        seen = code, said, calls = setup(root, "", "run", gpus=gpus)
        expect(f"-DFLOW_CUDA_ARCHITECTURES={needed} -DBUILD_TESTING=OFF\n" in calls, f"run with the GPUs `{gpus}`", seen)
    seen = code, said, calls = setup(root, "", "run", gpus="9.0\\n", CUDAARCHS="80")
    expect("-DFLOW_CUDA_ARCHITECTURES=all " in calls, "CUDAARCHS alone decides", seen)
    for words in (["test"], ["build"], ["install", "tmp"], ["package", "deb"]):
        seen = code, said, calls = setup(root, "", *words, gpus="9.0\\n")
        expect("-DFLOW_CUDA_ARCHITECTURES=all " in calls, f"{words[0]} is for all GPUs", seen)

    of_run = "FLOW_CUDA_ARCHITECTURES:STRING=%s\nBUILD_TESTING:BOOL=OFF\n"
    of_test = "FLOW_CUDA_ARCHITECTURES:STRING=all\nBUILD_TESTING:BOOL=ON\n"
    with_all, with_tests = "-DFLOW_CUDA_ARCHITECTURES=all\n", "-DFLOW_CUDA_ARCHITECTURES=all -DBUILD_TESTING=ON\n"
    for before, words, gpus, options in (
            (of_run % "90-real", ["run"], "9.0\\n", None),
            (of_run % "none", ["run"], "9.0\\n", "-DFLOW_CUDA_ARCHITECTURES=90-real\n"),  # a GPU was added
            (of_run % "none", ["install", "tmp"], "", with_all),
            (of_run % "none", ["package", "deb"], "", with_all),
            (of_run % "none", ["build"], "", with_tests),
            (of_run % "90-real", ["test"], "9.0\\n", with_tests),
            (of_run % "all", ["build"], "", with_tests),
            (of_test, ["run"], "", None),
            (of_test, ["test"], "", None),
            (of_test, ["install", "tmp"], "", None),
            ("BUILD_TESTING:BOOL=ON\n", ["run"], "", None),
            ("BUILD_TESTING:BOOL=ON\n", ["test"], "", None)):
        seen = code, said, calls = setup(root, "", *words, cache=before, gpus=gpus)
        configured = re.findall(r"cmake --preset release (.*\n)", calls)
        expect(configured == ([options] if options else []), f"{words[0]} after the configuration {before!r}", seen)


def main():
    root = sys.argv[1]

    seen = code, said, calls = setup(root, "catch2 graphviz")
    expect(code == 1 and calls == "", "without a required package nothing is tried", seen)
    line = "  apt-get update && apt-get install -y --no-install-recommends catch2\n"
    expect(line in said and "installing catch2" not in said, "the error has the line to run as root", seen)

    seen = code, said, calls = setup(root, "libucx-dev graphviz curl")
    expect(code == 0 and "cmake --build" in calls, "without optional packages it builds", seen)
    expect("left out: libucx-dev (optional)" in said and "apt-get" not in calls, "what is left out is named", seen)

    # Without a build folder ctest is not started.
    seen = _, said, calls = setup(root, "graphviz curl", "test")
    expect("left out: graphviz curl (optional)" in said and "cmake --build" in calls, "tests say what they lack", seen)

    for lacking in ("catch2", "python3", "git", "ccache"):
        seen = _, said, calls = setup(root, lacking, "run")
        expect("-DBUILD_TESTING=OFF" in calls and lacking not in said, f"run does without {lacking}", seen)
        seen = code, said, calls = setup(root, lacking)
        expect(code == 1 and lacking in said and calls == "", f"build needs {lacking}", seen)

    seen = code, said, calls = setup(root, "")
    expect(code == 0 and "apt-get" not in calls and "left out" not in said, "with all of them it only builds", seen)

    rules = "".join((pathlib.Path(root) / "cmake" / name).read_text() for name in ("FlowInstall.cmake", "library/CMakeLists.txt"))
    needed = {name for found in re.findall(r"install\(TARGETS ([^)]*)\)", rules)
              for name in re.split(r" (?:EXPORT|RUNTIME|LIBRARY)", found)[0].split()}
    for words, targets in ((["run"], {"flow", "flow-executor", "flow-front"}), (["install", "tmp"], needed)):
        seen = code, said, calls = setup(root, "", *words)
        built = re.search(r"cmake --build build/release --target (.*)", calls)
        expect(built is not None and set(built.group(1).split()) == targets, f"{words[0]} builds what it needs", seen)
    check_architectures(root)

    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/new/place"
        for words in ([place], ["--prefix", place], [f"--prefix={place}"], ["--prefix", place.lstrip("/")]):
            seen = code, said, calls = setup(root, "", "install", *words)
            expect(code == 0 and f"cmake --install build/release --strip --prefix {place}\n" in calls, f"install to {words}", seen)
    for words, lacking in ((["--prefix"], "needs a folder"), (["--to"], "no option --to"), (["a", "b"], "argument b")):
        seen = code, said, calls = setup(root, "", "install", *words)
        expect(code == 2 and lacking in said and calls == "", f"install {words} is an error", seen)
    seen = code, said, calls = setup(root, "", "install", "--prefix", f"{os.path.abspath(root)}/LICENSE/usr")
    expect(code == 1 and "/LICENSE/usr cannot be written" in said and calls == "", "install to a folder that cannot be written", seen)

    for words, configs in (([], ["release", "portable"]), (["deb"], ["release"]), (["tarball"], ["portable"])):
        seen = code, said, calls = setup(root, "", "package", *words)
        expect(code == 0 and re.findall(r"cpack --config build/(\w+)/CPackConfig.cmake -B build/packages", calls) == configs, f"package {words}", seen)
        expect(said.count("made: /packages/flow.deb\n") == len(configs), "the packages are named", seen)
    seen = code, said, calls = setup(root, "", "package", "rpm")
    expect(code == 2 and "not rpm" in said and calls == "", "an unknown kind of package is an error", seen)
    seen = code, said, calls = setup(root, "file", "package")
    expect(code == 1 and "file" in said and calls == "", "packages need the program file", seen)


main()
