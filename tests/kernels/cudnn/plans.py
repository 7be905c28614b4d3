#!/usr/bin/env python3
"""Whether cuDNN itself accepts flow's graphs of attention, for an A100 and an H200, without a GPU.

usage: plans.py TEST_CUDNN DRIVER [BUILD RELEASE...]
DRIVER: the folder of the libcuda.so.1 of no_driver.cc. Without a RELEASE, the cuDNN of this machine. A RELEASE is a list of packages
of PyPI, installed into a folder of BUILD: nvidia-cudnn-cu13==9.19.0.56,nvidia-cuda-nvrtc
"""
import os
import pathlib
import subprocess
import sys


def install(build, release):
    """The folder with the packages, or None and the reason."""
    folder = pathlib.Path(build) / ("cudnn-" + release.split(",")[0].replace("==", "-"))
    if (folder / "nvidia").is_dir():
        return folder, ""
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                           "--target", str(folder), *release.split(",")], capture_output=True, text=True)
    return (folder, "") if done.returncode == 0 else (None, done.stderr.strip()[-300:])


def check(program, driver, folder):
    """The exit code of the test; 77 if the machine has no cuDNN."""
    env = {name: value for name, value in os.environ.items() if name != "FLOW_CUDNN_LIB"}
    paths = [driver]
    if folder:
        library = folder / "nvidia/cudnn/lib/libcudnn.so.9"
        env["FLOW_TEST_CUDNN"] = str(library)
        paths += [str(path) for path in sorted(folder.glob("nvidia/*/lib"))]
    paths += [path for path in env.get("LD_LIBRARY_PATH", "").split(":") if path]
    env["LD_LIBRARY_PATH"] = ":".join(paths)
    done = subprocess.run([program, "[plans]"], env=env, capture_output=True, text=True)
    print(done.stdout + done.stderr)
    return 77 if done.returncode == 0 and "skipped: " in done.stdout else done.returncode


def main():
    program, driver, *rest = sys.argv[1:]
    if not rest:
        return check(program, driver, None)
    codes = []
    for release in rest[1:]:
        print("== " + release, flush=True)
        folder, why = install(rest[0], release)
        if folder is None:
            print("skipped: pip could not install %s: %s" % (release, why))
            codes.append(77)
            continue
        code = check(program, driver, folder)
        codes.append(1 if code == 77 else code)  # its library cannot be loaded
    failed = [code for code in codes if code not in (0, 77)]
    return failed[0] if failed else max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
