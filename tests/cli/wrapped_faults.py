#!/usr/bin/env python3
"""Servers behind a service that answer oddly, that harm flow, or whose port somebody else takes.

usage: wrapped_faults.py --flow BIN [TEST...]
"""
import glob
import hashlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

NOBODY = 65534
LIMIT_S = 120

# A server that writes the bytes of its responses itself, and notes the heads of its requests. It runs `before` first, and when
# `close` exists it closes all its sockets and stays.
SERVER = r'''
import hashlib, os, random, socket, sys, threading, time
folder, port = sys.argv[1], int(sys.argv[2])
lock = threading.Lock()

def path(name):
    return os.path.join(folder, name)

def note(file, text):
    with lock, open(path(file), "a") as out:
        out.write(text + "\n")

def until(name):
    while not os.path.exists(path(name)): time.sleep(0.01)

def ok(body, fields=""):
    return ("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), fields, body)).encode()

FIXED = {
    "/health": ok("well"),
    "/early": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + ok("early"),
    "/trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Sum\r\n\r\n3\r\nabc\r\n0\r\nSum: 6\r\n\r\n",
    "/204": b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\nX-Own: 1\r\n\r\n",
    "/304": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: \"e\"\r\n\r\n",
    "/large-head": ok("x", "X-Large: %s\r\n" % ("a" * 60000)),
    "/larger-head": ok("x", "X-Large: %s\r\n" % ("a" * 70000)),
    "/cookies": ok("x", "Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n"),
    "/more": ok("own") + ok("of somebody else"),
    "/two-lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "/switch": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
    "/no-http": b"SSH-2.0-x\r\n\r\n",
}

def more(client, data):
    got = client.recv(1 << 16)
    if not got: raise OSError("the client has left")
    return data + got

def serve(client):
    data = b""
    while True:
        while b"\r\n\r\n" not in data: data = more(client, data)
        head, data = data.split(b"\r\n\r\n", 1)
        lines = head.decode().split("\r\n")
        method, target, _ = lines[0].split(" ")
        fields = {line.split(":")[0].lower(): line.split(":", 1)[1].strip() for line in lines[1:]}
        if target not in ("/health", "/live"): note("requests", lines[0])
        if target == "/refuse":
            client.sendall(b"HTTP/1.1 413 x\r\nContent-Length: 3\r\n\r\nbig")
            return
        body, length, is_chunked = hashlib.sha256(), 0, "transfer-encoding" in fields
        while True:
            while is_chunked and b"\r\n" not in data: data = more(client, data)
            left = int(fields.get("content-length", 0))
            if is_chunked:
                size, data = data.split(b"\r\n", 1)
                left = int(size, 16)
            length, size = length + left, left
            while left:
                if not data: data = more(client, data)
                body.update(data[:left])
                left, data = left - len(data[:left]), data[left:]
                if target == "/slow" and random.random() < 0.1: time.sleep(0.01)
            if not is_chunked: break
            while len(data) < 2: data = more(client, data)
            data = data[2:]  # the trailers are dropped by the front
            if not size: break
        if target == "/fields":
            client.sendall(ok("\n".join(lines)))
        elif target in ("/body", "/slow"):
            client.sendall(ok("%d %s" % (length, body.hexdigest())))
        elif target == "/pid":
            client.sendall(ok(str(os.getpid())))
        elif target == "/live":
            if os.path.exists(path("hang")): time.sleep(3600)
            client.sendall(FIXED["/health"])
        elif target == "/drip":
            try:
                for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100000:
                    client.sendall(bytes([byte]))
                    time.sleep(0.02)
            except OSError:
                note("left", target)
            return
        elif target == "/half":
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\nhalf")
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536): pass
            return
        elif target == "/stream":
            try:
                client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                while True:
                    client.sendall(b"5\r\ntick\n\r\n")
                    time.sleep(0.01)
            except OSError:
                note("left", target)
            return
        else:
            response = FIXED.get(target, b"HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n")
            client.sendall(response[:response.index(b"\r\n\r\n") + 4] if method == "HEAD" else response)

def answer(client):
    with client:
        try: serve(client)
        except OSError: pass

note("started", "%d %d" % (os.getpid(), port))
if os.path.exists(path("before")): exec(open(path("before")).read())
listener = socket.create_server(("127.0.0.1", port))

def accept():
    while True:
        try: client, _ = listener.accept()
        except OSError: return
        threading.Thread(target=answer, args=(client,), daemon=True).start()

threading.Thread(target=accept, daemon=True).start()
until("close")
os.remove(path("close"))
listener.shutdown(socket.SHUT_RDWR)
listener.close()
note("closed", "")
os.execvp("sleep", ["sleep", "3600"])  # and its connections end
'''
# Takes a port and answers everything with 200, and notes what it gets.
SQUATTER = r'''
import socket, sys, threading, time
port, file = int(sys.argv[1]), sys.argv[2]
while True:
    try:
        listener = socket.create_server(("127.0.0.1", port))
        break
    except OSError:
        time.sleep(0.01)
print("took it", flush=True)

def answer(client):
    with client:
        got = client.recv(65536)
        with open(file, "ab") as out: out.write(b"connection: " + got + b"\n")
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nmine!")

while True:
    client, _ = listener.accept()
    threading.Thread(target=answer, args=(client,), daemon=True).start()
'''
SCRIPT = r'''
local flow = require "flow"
local web = flow.service("web", { OPTIONS ready = "/health", args = { "folder" }, command = [[COMMAND]] })
return flow.pipeline("wrapped", {}, function() return { web = web("FOLDER") } end)
'''


class Peer:
    """A client that writes its bytes itself."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=LIMIT_S)
        self.data = b""

    def send(self, data):
        self.socket.sendall(data if isinstance(data, bytes) else data.encode())

    def until(self, mark):
        while mark not in self.data:
            more = self.socket.recv(65536)
            if not more:
                break
            self.data += more
        at = self.data.find(mark)
        taken = self.data[:at + len(mark)] if at >= 0 else self.data
        self.data = self.data[len(taken):]
        return taken.decode()

    def read(self, size):
        while len(self.data) < size:
            more = self.socket.recv(65536)
            if not more:
                break
            self.data += more
        taken, self.data = self.data[:size], self.data[size:]
        return taken.decode()

    def response(self, method="GET"):
        """Status, fields and body of one with a length, or in chunks."""
        head = self.until(b"\r\n\r\n").split("\r\n")
        status = int(head[0].split(" ")[1])
        fields = [tuple(line.split(": ", 1)) for line in head[1:] if line]
        named = dict(fields)
        if method == "HEAD" or status in (204, 304):
            return status, fields, ""
        if named.get("Transfer-Encoding") != "chunked":
            return status, fields, self.read(int(named["Content-Length"]))
        body = ""
        while size := int(self.until(b"\r\n"), 16):
            body += self.read(size)
            self.until(b"\r\n")
        self.until(b"\r\n")
        return status, fields, body

    def ask(self, path, method="GET", fields="", body=b""):
        self.send("%s %s HTTP/1.1\r\nHost: a\r\n%s\r\n" % (method, path, fields))
        self.send(body)
        return self.response(method)

    def rest(self):
        while more := self.socket.recv(65536):
            self.data += more
        return self.data

    def close(self):
        self.socket.close()


class WrappedFaults(Place):
    def setUp(self):
        super().setUp()
        self.peers = []

    def script(self, options="", command="exec python3 SERVER {folder} {port}"):
        self.write("server.py", SERVER)
        text = SCRIPT.replace("OPTIONS", options).replace("COMMAND", command).replace("FOLDER", self.folder)
        self.write("pipeline.lua", text.replace("SERVER", self.path("server.py")))

    def lines(self, name):
        return self.read(name).splitlines() if os.path.exists(self.path(name)) else []

    def starts(self):
        return [tuple(int(word) for word in line.split()) for line in self.lines("started")]

    def is_alive(self, pid):
        """Whether it runs: one that has ended may wait for its parent."""
        try:
            return pathlib.Path("/proc/%d/stat" % pid).read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    def serve(self, *words):
        run = self.start("run", ".", "--serve-for", "600s", *words)

        def serves():
            self.assertIsNone(run.poll())
            return any(each.get("url") for each in self.runs())
        self.until("it serves", serves)
        self.address = ("127.0.0.1", int(self.show()["url"].rsplit(":", 1)[1]))
        return run

    def client(self):
        peer = Peer(self.address)
        self.peers.append(peer)
        self.addCleanup(peer.close)
        return peer

    def ends(self, run):
        for peer in self.peers:  # or the front would wait a second for their next requests
            peer.close()
        run.send_signal(signal.SIGINT)
        self.exits(0, self.end(run))

    def memory(self, pid):
        """Its peak, in bytes."""
        return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/%d/status" % pid).read_text())[1]) * 1024

    def front(self):
        (path,) = glob.glob(os.path.join(self.state, "fronts", "*", "front.pid"))
        return int(self.read(path))

    def executor(self):
        return int(pathlib.Path("/proc/%d/stat" % self.starts()[-1][0]).read_text().rsplit(")", 1)[1].split()[1])

    # ---- Responses

    def test_odd_responses_have_one_reading(self):
        self.script()
        run = self.serve()
        client = self.client()
        for path, expected in {"/early": (200, [("Content-Length", "5")], "early"),
                               "/trailers": (200, [("Transfer-Encoding", "chunked")], "abc"),
                               "/204": (204, [("X-Own", "1")], ""),
                               "/304": (304, [("Content-Length", "5"), ("ETag", '"e"')], ""),
                               "/cookies": (200, [("Content-Length", "1"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")], "x"),
                               "/large-head": (200, [("Content-Length", "1"), ("X-Large", "a" * 60000)], "x"),
                               "/half": (200, [("Transfer-Encoding", "chunked")], "half")}.items():
            self.assertEqual(client.ask(path), expected, path)
        self.assertEqual(client.ask("/health", "HEAD"), (200, [("Content-Length", "4")], ""))
        for path, reason in {"/larger-head": "its head is larger than 65536 bytes", "/two-lengths": "Content-Length is not one number",
                             "/switch": "it changes the protocol", "/no-http": "it does not begin with"}.items():
            status, _, body = client.ask(path)
            self.assertEqual(status, 502, path)
            self.assertIn(reason, body)
        self.assertEqual(client.ask("/early")[2], "early")  # the connection is as good as before
        self.ends(run)

    def test_what_a_server_sends_after_a_response_answers_no_other_request(self):
        self.script()
        run = self.serve()
        first, second = self.client(), self.client()
        for _ in range(20):
            self.assertEqual(first.ask("/more")[2], "own")
            self.assertEqual(second.ask("/early")[2], "early")
        self.ends(run)

    def test_a_request_has_one_reading_too(self):
        self.script()
        run = self.serve()
        client = self.client()
        hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
        chunks = "%x\r\n%s\r\n0\r\nX: y\r\n\r\n" % (len(hidden), hidden)
        self.assertRegex(client.ask("/body", "POST", "Transfer-Encoding: chunked\r\n", chunks.encode())[2], "^%d " % len(hidden))
        self.assertRegex(client.ask("/body", "GET", "Content-Length: %d\r\n" % len(hidden), hidden.encode())[2], "^%d " % len(hidden))
        for fields in ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "Content-Length: 5\r\nContent-Length: 6\r\n",
                       "Transfer-Encoding: gzip, chunked\r\n", "Content-Length: +5\r\n", "Content-Length : 5\r\n"):
            attacker = self.client()
            attacker.send("POST /body HTTP/1.1\r\nHost: a\r\n%s\r\n0\r\n\r\n%s" % (fields, hidden))
            self.assertIn(attacker.until(b"\r\n").split(" ")[1], ("400", "501"), fields)
            attacker.rest()  # the connection is closed
        self.assertNotIn("GET /hidden HTTP/1.1", self.lines("requests"))
        sent = client.ask("/fields", fields="Connection: close, Host, X-Drop\r\nX-Drop: 1\r\nX-Forwarded-Proto: https\r\nTE: trailers\r\n")[2]
        self.assertIn("Host: a", sent)
        for word in ("X-Drop", "https", "TE:", "close"):
            self.assertNotIn(word, sent)
        self.ends(run)

    def test_a_head_that_does_not_end_in_time_is_a_504_and_its_request_is_cancelled(self):
        self.script('timeout = "1s",')
        run = self.serve()
        client = self.client()
        self.assertEqual(client.ask("/drip")[0], 504)
        self.until("the server sees it", lambda: self.lines("left") == ["/drip"])
        self.assertEqual(client.ask("/early")[2], "early")
        self.ends(run)

    def test_a_client_that_leaves_ends_its_stream_at_the_server(self):
        self.script()
        run = self.serve()
        client = self.client()
        client.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
        client.until(b"tick\n")
        client.close()
        self.until("the server sees it", lambda: self.lines("left") == ["/stream"])
        self.ends(run)

    # ---- Requests

    def test_websocket_is_refused_and_expect_is_answered_by_the_front(self):
        self.script()
        run = self.serve()
        client = self.client()
        status, _, body = client.ask("/fields", fields="Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n")
        self.assertEqual((status, json.loads(body)), (501, {"error": "WebSocket is not forwarded to the server of a service"}))
        self.assertEqual(self.lines("requests"), [])
        client.send("POST /fields HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        self.assertEqual(client.until(b"\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n")
        client.send("abc")
        sent = client.response()[2]
        self.assertIn("Content-Length: 3", sent)
        self.assertNotIn("Expect", sent)
        self.ends(run)

    def upload(self, path, fields, parts, sent):
        """Sends the parts, and keeps the response."""
        client = self.client()
        client.send("POST %s HTTP/1.1\r\nHost: a\r\n%s\r\n" % (path, fields))

        def send():
            for part in parts:
                client.send(part)
            sent.append(client.response())
        thread = threading.Thread(target=send)
        thread.start()
        return thread

    def test_bodies_of_any_size_reach_a_slow_server_byte_for_byte_and_take_little_memory(self):
        self.script('timeout = "600s",')
        run = self.serve()
        block = bytes(range(251)) * 4177  # which no frame or buffer divides
        count = 300  # together more than the 256 MiB that a front may hold
        expected = hashlib.sha256()
        for _ in range(count):
            expected.update(block)
        expected = "%d %s" % (len(block) * count, expected.hexdigest())
        before = self.memory(self.front())
        sent = []
        threads = [self.upload("/slow", "Content-Length: %d\r\n" % (len(block) * count), [block] * count, sent),
                   self.upload("/slow", "Transfer-Encoding: chunked\r\n",
                               [b"%x\r\n%s\r\n" % (len(block), block)] * count + [b"0\r\n\r\n"], sent)]
        for thread in threads:
            thread.join()
        self.assertEqual([(status, body) for status, _, body in sent], [(200, expected)] * 2)
        self.assertLess(self.memory(self.front()), before + (24 << 20))
        self.ends(run)

    def test_a_server_may_refuse_a_body_before_it_has_arrived(self):
        self.script()
        run = self.serve()
        client = self.client()
        client.send("PUT /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\nbegin" % (300 << 20))
        self.assertEqual(client.response(), (413, [("Content-Length", "3"), ("Connection", "close")], "big"))
        self.assertEqual(client.rest(), b"")
        self.ends(run)

    def test_a_body_that_arrives_during_a_stop_is_answered(self):
        self.script()
        run = self.serve("--grace", "600s")
        client = self.client()
        client.send("PUT /body HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (2 << 20))
        client.send(b"a" * (1 << 20))
        self.until("the server has it", lambda: self.lines("requests") == ["PUT /body HTTP/1.1"])
        run.send_signal(signal.SIGINT)
        self.until("the service stops", lambda: b"503" in self.client_status("/flow/ready"))
        client.send(b"b" * (1 << 20))
        status, fields, body = client.response()
        self.assertEqual((status, body.split()[0]), (200, str(2 << 20)))
        self.assertIn(("Connection", "close"), fields)
        self.exits(0, self.end(run))

    def client_status(self, path):
        """The first bytes of a response, or why there is none: a listener that has closed counts as 503."""
        try:
            client = self.client()
            client.send("GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" % path)
            return client.rest() or b"503"
        except OSError:
            return b"503"

    # ---- Processes

    def test_a_server_that_goes_to_the_background_fails_and_none_of_it_stays(self):
        self.script(command="python3 SERVER {folder} {port} & while [ ! -e {folder}/started ]; do sleep 0.01; done")
        self.exits(1, self.flow("run", "."), "the server of `web` ended by itself, with exit code 0: the command must run for as long as "
                   "the service lasts, in the foreground")
        ((pid, _),) = self.starts()
        self.assertFalse(self.is_alive(pid))

    def test_a_server_that_floods_its_log_serves_and_takes_little_room(self):
        self.write("before", "for i in range(120): sys.stdout.write(('x' * 1023 + '\\n') * 1024)\nsys.stdout.flush()")
        self.script()
        run = self.serve()
        self.assertEqual(self.client().ask("/early")[2], "early")
        self.assertLess(self.memory(self.executor()), 200 << 20)
        self.ends(run)
        self.assertIn("dropped", self.good("logs", "last", "web").out[-3_000_000:])

    def test_a_server_whose_health_hangs_is_replaced(self):
        self.script('health = "/live",')
        run = self.serve()
        ((pid, _),) = self.starts()
        self.open("hang")
        self.until("it is replaced", lambda: len(self.starts()) == 2)
        os.remove(self.path("hang"))
        self.assertFalse(self.is_alive(pid))
        self.until("the next one answers", lambda: self.client().ask("/pid")[2] == str(self.starts()[-1][0]))
        self.assertIn("(GET /live: no answer in time)", self.good("why", "last", "web").out + self.good("show", "last").out)
        self.ends(run)

    # ---- The port

    def squat(self, port):
        """Another user's process takes the port as soon as it is free; as root it is really another user's."""
        os.makedirs(self.path("theirs"), exist_ok=True)
        os.chmod(self.folder, 0o711)
        os.chmod(self.path("theirs"), 0o777)
        self.write("theirs/squatter.py", SQUATTER)
        user = {"user": NOBODY} if os.geteuid() == 0 else {}
        python = "/usr/bin/python3" if user else sys.executable  # the one of root may be hidden
        process = subprocess.Popen([python, self.path("theirs", "squatter.py"), str(port), self.path("theirs", "got")],
                                   stdout=subprocess.PIPE, text=True, **user)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def stolen(self):
        """What the squatter got, but for flow's questions whether the server is ready."""
        connections = "\n".join(self.lines("theirs/got")).split("connection: ")
        return [each for each in connections if each.strip() and not each.startswith("GET /health ")]

    def test_a_port_that_another_process_takes_first_never_counts_as_ready(self):
        # A server that loads a model for long, and a squatter that is ready at once.
        self.write("before", "if len(open(path('started')).read().splitlines()) == 1: time.sleep(3600)")
        self.script()
        run = self.start("run", ".", "--serve-for", "600s")
        self.until("it starts", lambda: self.starts())
        squatter = self.squat(self.starts()[0][1])
        self.assertEqual(squatter.stdout.readline(), "took it\n")
        self.until("it serves", lambda: any(each.get("url") for each in self.runs()))
        self.address = ("127.0.0.1", int(self.show()["url"].rsplit(":", 1)[1]))
        first, second = self.starts()
        self.assertFalse(self.is_alive(first[0]))
        self.assertNotEqual(first[1], second[1])
        self.assertEqual(self.client().ask("/pid")[2], str(second[0]))
        self.assertEqual(self.stolen(), [])
        self.assertIn("the port of the server was taken meanwhile", self.good("logs", "last", "web").out)
        self.ends(run)

    def test_a_port_that_a_server_gives_up_and_another_process_takes_gets_no_request(self):
        self.script()
        run = self.serve()
        (first,) = self.starts()
        squatter = self.squat(first[1])
        self.assertEqual(self.client().ask("/pid")[2], str(first[0]))
        self.open("close")
        self.assertEqual(squatter.stdout.readline(), "took it\n")
        secret = b"the key is 4711"
        status, _, body = self.client().ask("/body", "POST", "Content-Length: %d\r\nConnection: close\r\n" % len(secret), secret)
        self.assertEqual((status, body.split()[0]), (200, str(len(secret))))  # of the next server
        self.assertEqual(len(self.starts()), 2)
        self.assertFalse(self.is_alive(first[0]))
        self.assertEqual(self.stolen(), [])
        log = self.good("logs", "last", "web").out + self.good("why", "last", "web").out
        self.assertRegex(log, r"a process of user \d+ listens at 127.0.0.1:%d, the port of the server of `web`" % first[1])
        self.ends(run)

    def test_a_server_that_listens_for_other_machines_is_named(self):
        self.write("server.py", "")
        self.script()
        self.write("server.py", SERVER.replace('create_server(("127.0.0.1", port))', 'create_server(("", port))'))
        run = self.serve()
        self.assertEqual(self.client().ask("/early")[2], "early")
        self.assertIn("the server listens at all addresses of the machine", self.good("logs", "last", "web").out)
        self.ends(run)

    def test_a_server_that_listens_again_goes_on(self):
        text = SERVER.replace('note("closed", "")', 'listener = socket.create_server(("127.0.0.1", port)); '
                              'threading.Thread(target=accept, daemon=True).start(); note("closed", ""); time.sleep(3600)')
        self.script()
        self.write("server.py", text)
        run = self.serve()
        self.open("close")
        self.until("it listens again", lambda: self.lines("closed"))
        for _ in range(5):
            self.assertEqual(self.client().ask("/early")[2], "early")
        self.assertEqual(len(self.starts()), 1)
        self.ends(run)


if __name__ == "__main__":
    main()
