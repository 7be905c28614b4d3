"""Packages from PyPI, installed once into a folder next to the build."""
import os
import subprocess
import sys
import venv


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
