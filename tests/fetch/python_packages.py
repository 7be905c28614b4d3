"""A Python with packages of PyPI, in a folder next to the build."""
import os
import subprocess
import sys
import venv


def python_with(build, packages, modules, folder="fetch-python", options=()):
    """Returns a Python that can import the modules, or None and the reason. `options` are pip's."""
    check = ["-c", "import " + ", ".join(modules)]
    home = os.path.join(os.path.abspath(build), folder)
    python = os.path.join(home, "bin", "python")

    def is_ready(program):
        return subprocess.run([program, *check], capture_output=True).returncode == 0

    for program in (sys.executable, python):
        if os.path.exists(program) and is_ready(program):
            return program, ""
    try:
        if not os.path.exists(python):
            venv.create(home, with_pip=True, clear=True)
    # Debian's Python exits if python3-venv is missing
    except (OSError, subprocess.CalledProcessError, SystemExit) as error:
        return None, "no virtual environment can be made (install python3-venv): %s" % error
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options, *packages],
                          capture_output=True, text=True)
    if done.returncode != 0:
        return None, "pip could not install %s: %s" % (", ".join(packages), done.stderr.strip()[-300:])
    return python, ""
