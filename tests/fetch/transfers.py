#!/usr/bin/env python3
"""Downloads from a server that cuts, stalls, lies about lengths, fails, redirects and changes its content."""
import argparse
import base64
import hashlib
import http.server
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading

CONTENT = bytes((i * 31 + i // 251) % 256 for i in range(200_000))
PIECE = 32_768


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, certificate=None):
        super().__init__(("127.0.0.1", 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.lock = threading.Lock()
        self.seen = []                   # (path, headers) of each request
        self.release = threading.Event()  # ends stalled answers
        self.stalled = threading.Event()
        self.other = ""                  # URL of a second server
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, address):
        pass

    def count(self, path):
        return sum(1 for p, _ in self.seen if p == path)

    def ranges(self, path):
        return [h.get("Range") for p, h in self.seen if p == path]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, headers, body=b"", announced=None):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if announced is None else announced))
        self.end_headers()
        self.wfile.write(body)

    def cut(self, status, headers, body, announced):
        """An answer that ends early."""
        self.answer(status, headers, body, announced)
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_WR)

    def content(self, content=CONTENT, etag='"one"', ranges=True):
        """(status, headers, body) of an honest answer."""
        headers = {"ETag": etag} if etag else {}
        wanted = self.headers.get("Range")
        if etag and self.headers.get("If-None-Match") == etag:
            return 304, headers, b""
        if self.headers.get("If-Match") not in (None, etag):
            return 412, headers, b""
        if not wanted or not ranges:
            return 200, headers, content
        first, last = (int(x) for x in wanted[len("bytes="):].split("-"))
        if first >= len(content):
            return 416, {**headers, "Content-Range": "bytes */%d" % len(content)}, b""
        last = min(last, len(content) - 1)
        headers["Content-Range"] = "bytes %d-%d/%d" % (first, last, len(content))
        return 206, headers, content[first:last + 1]

    def do_GET(self):
        server, path = self.server, self.path.split("?")[0]
        with server.lock:
            server.seen.append((path, dict(self.headers)))
            number = server.count(path)  # of this request, from 1
        name = path.strip("/").split("/")[0]
        getattr(self, "get_" + name.replace("-", "_"))(number)

    def get_plain(self, number):
        self.answer(*self.content())

    def get_whole(self, number):
        self.answer(*self.content(ranges=False))

    def get_weak(self, number):
        self.answer(*self.content(etag='W/"one"'))

    def get_empty(self, number):
        self.answer(*self.content(b""))

    def get_cut(self, number):
        status, headers, body = self.content()
        if number <= 4 and len(body) > 1:
            return self.cut(status, headers, body[:len(body) // 2], len(body))
        self.answer(status, headers, body)

    def get_cut_whole(self, number):
        status, headers, body = self.content(ranges=False)
        if number == 1:
            return self.cut(status, headers, body[:1000], len(body))
        self.answer(status, headers, body)

    def get_stall(self, number):
        status, headers, body = self.content()
        if number == 2:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body[:10])
            self.wfile.flush()
            self.server.stalled.set()
            self.server.release.wait(60)
            self.close_connection = True
            return
        self.answer(status, headers, body)

    def get_busy(self, number):
        if number <= 3:
            return self.answer([503, 429, 500][number - 1], {"Retry-After": "0"}, b"later")
        self.answer(*self.content())

    def get_down(self, number):
        self.answer(503, {}, b"secret text of the server")

    def get_missing(self, number):
        self.answer(404, {}, b"")

    def get_more(self, number):
        """Announces and sends more than the range."""
        status, headers, body = self.content()
        if number == 2:
            return self.answer(status, headers, body + b"more")
        self.answer(status, headers, body)

    def get_other_range(self, number):
        status, headers, body = self.content()
        if number in (1, 3) and status == 206:
            first, rest = headers["Content-Range"][6:].split("-", 1)
            headers["Content-Range"] = "bytes %d-%s" % (int(first) + 1, rest)
        self.answer(status, headers, body)

    def get_less(self, number):
        """The body is shorter than the range, and its length says so."""
        status, headers, body = self.content()
        if number == 2:
            return self.answer(status, headers, body[:100])
        self.answer(status, headers, body)

    def get_changes(self, number):
        if number <= 2:
            return self.answer(*self.content(CONTENT[::-1], '"old"'))
        self.answer(*self.content())

    def get_restless(self, number):
        self.answer(*self.content(etag='"%d"' % number))

    def get_at_the_end(self, number):
        """Changes after the last range: noticed by the last request."""
        last = self.headers.get("Range") == "bytes=0-0"
        etag = '"one"' if number <= 7 and not last else '"two"'
        self.answer(*self.content(CONTENT if etag == '"one"' else CONTENT[::-1], etag))

    def get_redirect(self, number):
        left = int(self.path.split("/")[2])
        self.answer(302, {"Location": "/redirect/%d" % (left - 1) if left > 1 else "../plain"})

    def get_elsewhere(self, number):
        self.answer(302, {"Location": self.server.other + "/plain"})

    def get_here(self, number):
        self.answer(307, {"Location": "/plain?moved"})

    def get_slow(self, number):
        """Sends three pieces, then stalls until it is released."""
        status, headers, body = self.content()
        with self.server.lock:
            self.server.sent = getattr(self.server, "sent", 0) + 1
            waits = self.server.sent > 3
        if waits and not self.server.release.is_set():
            self.server.stalled.set()
            self.server.release.wait(60)
            self.close_connection = True
            return
        self.answer(status, headers, body)


class Test:
    def __init__(self, tool):
        self.tool = tool
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="flow-fetch-"))

    def start(self, url, *more, **variables):
        target = os.path.join(self.folder, "file")
        environment = {**os.environ, "FLOW_TEST_PIECE": str(PIECE), "FLOW_FETCH_STALL": "1s", "FLOW_FETCH_CONNECTIONS": "2",
                       "no_proxy": "*", **variables}
        return subprocess.Popen([self.tool, "get", url, target, *more], env=environment, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def get(self, url, *more, content=CONTENT, **variables):
        """Downloads, and returns what the tool printed; checks the content."""
        started = self.start(url, *more, **variables)
        out, errors = started.communicate()
        assert started.returncode == 0, (url, errors)
        if content is not None:
            with open(os.path.join(self.folder, "file"), "rb") as file:
                assert file.read() == content, url
            assert json.loads(out)["sha256"] == hashlib.sha256(content).hexdigest(), out
        left = sorted(os.listdir(self.folder))
        assert left in (["file"], [], ["ca.pem", "file"]), left
        return json.loads(out)

    def fails(self, url, *more, **variables):
        started = self.start(url, *more, **variables)
        _, errors = started.communicate()
        assert started.returncode == 2, (url, started.returncode, errors)
        return errors.strip()


def test_contents(test, server, url):
    test.get(url + "/plain")
    assert server.ranges("/plain")[0] == "bytes=0-%d" % (PIECE - 1)
    assert sorted(set(server.ranges("/plain")), key=str)[-1] != "bytes=0-0" and server.ranges("/plain")[-1] == "bytes=0-0"
    conditions = [h.get("If-Match") for p, h in server.seen if p == "/plain"]
    assert conditions[0] is None and set(conditions[1:]) == {'"one"'}, conditions
    assert {h.get("Accept-Encoding") for _, h in server.seen} == {"identity"}
    assert test.get(url + "/plain", "", '"one"', content=None) == {"unchanged": True}
    test.get(url + "/plain", "", '"older"')
    test.get(url + "/whole")
    test.get(url + "/weak")
    assert {h.get("If-Match") for p, h in server.seen if p == "/weak"} == {None}
    test.get(url + "/empty", content=b"")
    test.get(url + "/plain", hashlib.sha256(CONTENT).hexdigest())
    error = test.fails(url + "/plain", "0" * 64)
    assert hashlib.sha256(CONTENT).hexdigest() in error and "0" * 64 in error, error


def test_faults(test, server, url):
    test.get(url + "/cut")
    assert any(not r.startswith("bytes=0-") and int(r[6:].split("-")[0]) % PIECE for r in server.ranges("/cut")), \
        "a cut range was not continued where it was cut: %s" % server.ranges("/cut")
    test.get(url + "/cut-whole")
    test.get(url + "/stall")
    assert server.stalled.is_set()
    test.get(url + "/busy")
    for name in ("more", "less", "other-range"):
        test.get(url + "/" + name)
    error = test.fails(url + "/down?token=hidden", FLOW_FETCH_RETRIES="2")
    assert error == ("error: cannot fetch `%s/down?…`: the server answered 503 (3 attempts). Check the URL and the network, or use "
                     "the copy in the state with --offline" % url), error
    assert server.count("/down") == 3
    error = test.fails(url + "/missing")
    assert error == "error: cannot fetch `%s/missing`: the server answered 404: check the URL" % url, error
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        error = test.fails("http://me:hidden@127.0.0.1:%d/x?hidden" % closed.getsockname()[1], FLOW_FETCH_RETRIES="1")
    assert "hidden" not in error and "(2 attempts)" in error, error


def test_changes(test, server, url):
    test.get(url + "/changes")
    test.get(url + "/at_the_end", content=CONTENT[::-1])
    error = test.fails(url + "/restless")
    assert "changed 4 times while it was fetched" in error, error


def test_redirects(test, server, url):
    test.get(url + "/redirect/5")
    error = test.fails(url + "/redirect/6")
    assert "redirects more than 5 times" in error, error
    other = Server()
    server.other = "http://127.0.0.1:%d" % other.server_address[1]
    with_user = url.replace("http://", "http://me:pass%20word@")
    test.get(with_user + "/elsewhere")
    basic = "Basic " + base64.b64encode(b"me:pass word").decode()
    assert {h.get("Authorization") for p, h in server.seen if p == "/elsewhere"} == {basic}
    assert {h.get("Authorization") for _, h in other.seen} == {None}, "credentials went to another host"
    server.seen.clear()
    test.get(with_user + "/here")
    assert {h.get("Authorization") for p, h in server.seen if p == "/plain"} == {basic}
    other.shutdown()


def test_https(test, url):
    certificate = os.path.join(test.folder, "ca.pem")
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                           "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", certificate + ".key", "-out", certificate],
                          capture_output=True)
    assert made.returncode == 0, made.stderr
    with open(certificate, "ab") as out, open(certificate + ".key", "rb") as key:
        out.write(key.read())
    os.remove(certificate + ".key")
    secure = Server(certificate)
    secure.other = url
    secure_url = "https://127.0.0.1:%d" % secure.server_address[1]
    test.get(secure_url + "/plain", SSL_CERT_FILE=certificate)
    error = test.fails(secure_url + "/plain")
    assert "certificate" in error and "attempts" not in error, error
    error = test.fails(secure_url + "/elsewhere", SSL_CERT_FILE=certificate)
    assert "redirects from https to `%s/plain`, which is not encrypted" % url in error, error
    secure.shutdown()
    os.remove(certificate)


def test_resume(test, server, url):
    """A download whose process is killed continues where it was."""
    started = test.start(url + "/slow", FLOW_FETCH_CONNECTIONS="1", FLOW_FETCH_STALL="60s")
    assert server.stalled.wait(60)
    started.send_signal(signal.SIGTERM)
    started.wait()
    assert sorted(os.listdir(test.folder)) == ["file.part", "file.part.progress"], os.listdir(test.folder)
    server.release.set()
    server.seen.clear()
    test.get(url + "/slow")
    firsts = sorted(int(r[6:].split("-")[0]) for r in server.ranges("/slow") if r != "bytes=0-0")
    assert firsts[0] >= PIECE, "the first range was fetched again: %s" % server.ranges("/slow")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--build")
    args = parser.parse_args()
    for each in (test_contents, test_faults, test_changes, test_redirects, test_https, test_resume):
        test, server = Test(args.tool), Server()
        url = "http://127.0.0.1:%d" % server.server_address[1]
        try:
            each(test, url) if each is test_https else each(test, server, url)
        finally:
            server.release.set()
            server.shutdown()
            shutil.rmtree(test.folder)
        print(each.__name__[5:], "passed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
