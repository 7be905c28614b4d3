"""Packages from PyPI, installed once into a folder next to the build."""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv

SKIP = 77


def python_with_packages(build, folder, packages, imports):
    """Returns a Python that runs the statement `imports`, with the packages installed if need be; or None and the reason."""
    def is_ready(python):
        return subprocess.run([python, "-c", imports], capture_output=True).returncode == 0
    home = os.path.join(build, folder)
    python = os.path.join(home, "bin", "python")
    for each in (sys.executable, python):
        if os.path.exists(each) and is_ready(each):
            return each, ""
    try:
        venv.create(home, with_pip=True, clear=True)
    # Debian's Python exits if python3-venv is missing
    except (OSError, subprocess.CalledProcessError, SystemExit) as error:
        return None, "no virtual environment can be made (install python3-venv): %s" % error
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
                          capture_output=True, text=True)
    if done.returncode != 0:
        return None, "pip could not install %s: %s" % (", ".join(packages), done.stderr.strip()[-300:])
    return python, ""


def run_tests(tests, name, packages, imports):
    """The exit code of a program `--flow BIN --build DIR [TEST...]`: runs `tests`, functions of the program and a folder by name, with a Python
    that has the packages. The virtual environment is interop-NAME-python."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("tests", nargs="*", help="of: " + ", ".join(tests))
    args = parser.parse_args()
    python, why = python_with_packages(os.path.abspath(args.build), "interop-%s-python" % name, packages, imports)
    if python is None:
        print("skipped: " + why)
        return SKIP
    if os.path.realpath(python) != os.path.realpath(sys.executable) or os.path.dirname(python) != os.path.dirname(sys.executable):
        return subprocess.run([python, os.path.abspath(sys.argv[0]), *sys.argv[1:]]).returncode
    base = os.path.realpath(tempfile.mkdtemp(prefix="flow-%s-" % name))
    try:
        for each in args.tests or tests:
            folder = os.path.join(base, each)
            os.makedirs(folder)
            tests[each](os.path.abspath(args.flow), folder)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return 0
