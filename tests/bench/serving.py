"""A service that flow serves while a benchmark runs, shared by bench_serve.py and bench_tls.py."""
import json
import os
import subprocess
import sys
import time


def until(what, condition, limit_s=120):
    """The first true value of `condition`."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    sys.exit("%s: %s did not happen within %d s" % (os.path.basename(sys.argv[0]), what, limit_s))


class Serving:
    """`flow run PIPELINE` with a state in `folder`; ended at the end."""

    def __init__(self, programs, folder, *words, pipeline=None):
        self.flow = os.path.join(os.path.abspath(programs), "flow")
        self.state = os.path.join(folder, "state")
        self.run = subprocess.Popen([self.flow, "run", pipeline or folder, "--state", self.state, "--quiet", "--serve-for", "1h", *words],
                                    stdout=subprocess.DEVNULL)

    def __enter__(self):
        try:
            self.port = until("the start of the service", self.find_port)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.run.terminate()
        self.run.wait(60)

    def find_port(self):
        shown = subprocess.run([self.flow, "show", "--state", self.state, "--json"], capture_output=True, check=False)
        try:
            url = json.loads(shown.stdout).get("url")
        except ValueError:
            return None
        return url and int(url.rsplit(":", 1)[1])
