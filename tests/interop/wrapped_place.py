"""A run that serves a server of others behind flow's front, and requests to both of them."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import ssl
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "state"), os.path.join(HERE, "..", "fetch")]
import place  # noqa: E402

LIMIT_S = 120


class Answer:
    def __init__(self, status, fields, body):
        self.status, self.fields, self.body = status, fields, body

    def json(self):
        return json.loads(self.body)


class Server:
    """Where requests go: the front of a service, or the server itself."""

    def __init__(self, url, key=None, authorities=None):
        scheme, rest = url.split("://")
        self.host, port = rest.split("/")[0].split(":")
        self.port = int(port)
        self.context = ssl.create_default_context(cafile=authorities) if scheme == "https" else None
        self.fields = {"Authorization": "Bearer " + key} if key else {}

    def connect(self):
        if self.context:
            return http.client.HTTPSConnection(self.host, self.port, timeout=LIMIT_S, context=self.context)
        return http.client.HTTPConnection(self.host, self.port, timeout=LIMIT_S)

    @contextlib.contextmanager
    def opened(self, method, path, body=None, fields=None):
        """The response, of which the caller reads the body."""
        connection = self.connect()
        try:
            text = json.dumps(body) if isinstance(body, (dict, list)) else body
            kind = {"Content-Type": "application/json"} if isinstance(body, (dict, list)) else {}
            connection.request(method, path, text, {**kind, **self.fields, **(fields or {})})
            yield connection.getresponse()
        finally:
            connection.close()

    def ask(self, method, path, body=None, fields=None):
        with self.opened(method, path, body, fields) as response:
            return Answer(response.status, dict(response.getheaders()), response.read())

    def get(self, path):
        return self.ask("GET", path)


class Load(threading.Thread):
    """Calls `ask` again and again until its end; what it raises is a failure."""

    def __init__(self, ask):
        super().__init__()
        self.ask = ask
        self.answers, self.failures = [], []
        self.is_over = False
        self.start()

    def run(self):
        while not self.is_over:
            try:
                self.answers.append(self.ask())
            except Exception as error:  # noqa: BLE001
                self.failures.append(repr(error))

    def end(self):
        self.is_over = True
        self.join()


class WrappedPlace(place.Place):
    def serve(self, *words, before=()):
        """A run of the script that serves."""
        run = self.start("run", ".", "--serve-for", "900s", *words, before=before)
        self.until_serving(run)
        return run

    def resume(self):
        """The last run, once it serves again: until then its status is the one of before."""
        run = self.start("resume", "last", "--serve-for", "900s")
        for line in run.stdout:
            if "serves at" in line:
                return run
        self.fail("it ended: %s" % (run.communicate(),))

    def until_serving(self, run):
        def serves():
            if run.poll() is not None:
                self.fail("it ended: %s" % (run.communicate(),))
            return any(each["status"] == "serving" for each in self.runs())
        self.until("it serves", serves)

    def front(self, run="last", **options):
        return Server(self.show(run)["url"], **options)

    def ends(self, run):
        run.send_signal(signal.SIGINT)
        return self.exits(0, self.end(run))

    def server_ports(self):
        """Ports of the servers by pid, from the command lines of the processes that this test started."""
        found = {}
        for pid in self.processes_below():
            with contextlib.suppress(OSError):
                words = pathlib.Path("/proc/%d/cmdline" % pid).read_text()
                port = re.search(r"port[=\0](\d+)", words)
                if port and not words.startswith(("bash", "/bin/bash", "sh\0")):
                    found[pid] = int(port[1])
        return found

    def processes_below(self):
        """Descendants of the processes of services."""
        parents = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    parents[int(name)] = int(pathlib.Path("/proc", name, "stat").read_text().rsplit(")", 1)[1].split()[1])
        found = set(self.serving())
        while True:
            more = {pid for pid, parent in parents.items() if parent in found} - found
            if not more:
                return found
            found |= more

    def metric(self, server, name):
        text = server.get("/flow/metrics").body.decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    def front_memory(self):
        """Bytes of the front's process."""
        (path,) = [os.path.join(top, "front.pid") for top, _, files in os.walk(self.state) if "front.pid" in files]
        status = pathlib.Path("/proc", self.read(path).strip(), "status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024

    def certificate(self):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem",
                        "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
                       cwd=self.folder, check=True, capture_output=True)
        os.chmod(self.path("key.pem"), 0o600)
        return self.path("cert.pem")


def timed(what, work):
    began = time.monotonic()
    result = work()
    print("%s: %.1f s" % (what, time.monotonic() - began), flush=True)
    return result
