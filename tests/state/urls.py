#!/usr/bin/env python3
"""Inputs at URLs: fetched once per version, verified, and never asked for on resume."""
import hashlib
import http.server
import os
import threading

import place

READ = """
local flow = require "flow"
local read = flow.task("read", function(ctx, path)
  local file = io.open(path)
  local text = file:read("a")
  file:close()
  return text
end)
return flow.pipeline("urls", %s, function(p)
  return read(%s)
end)
"""
WHOLE = """
local flow = require "flow"
local whole = flow.task("whole", { cache = false }, function(ctx, path)
  local text = flow.fs.read(path)
  return { #text, text == text:sub(1, 1):rep(#text) }
end)
return flow.pipeline("whole", { data = flow.param.path {} }, function(p) return whole(p.data) end)
"""
LIST = """
local flow = require "flow"
local join = flow.task("join", function(ctx, paths)
  local out = {}
  for i, path in ipairs(paths) do out[i] = flow.fs.read(path) end
  return table.concat(out, ",")
end)
return flow.pipeline("list", { files = flow.param.files {} }, function(p) return join(p.files) end)
"""
HELD = place.HOLD + """
local read = flow.task("read", function(ctx, path, held)
  local file = io.open(path)
  local text = file:read("a")
  file:close()
  return text .. held
end)
return flow.pipeline("urls", { data = flow.param.path {} }, function(p)
  return read(p.data, hold("%s", "one").stdout)
end)
"""


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = b"first"
        self.changes = False  # each answer has other content of the same size, and no validator
        self.cuts = 0  # answers that end in the middle
        self.status, self.length = 0, ""  # instead of the right ones
        self.unasked = ""  # the offset of a range that it sends unasked
        self.fails = False
        self.seen = []  # (path, status)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        content = self.server.content
        if self.server.changes:
            content = bytes([len(self.server.seen) % 256]) * (20 << 20)
        etag = '"%s"' % hashlib.sha256(content).hexdigest()
        status, headers, body = 200, {} if self.server.changes else {"ETag": etag}, content
        if self.server.fails:
            status, headers, body = 503, {}, b""
        elif self.headers.get("If-None-Match") == etag:
            status, body = 304, b""
        elif self.headers.get("If-Match", etag) != etag:
            status, body = 412, b""
        elif self.headers.get("Range") or self.server.unasked:
            wanted = self.headers.get("Range", "bytes=%s-%d" % (self.server.unasked, 1 << 30))
            first, last = (int(x) for x in wanted[len("bytes="):].split("-"))
            last = min(last, len(content) - 1)
            status, body = 206, content[first:last + 1]
            headers["Content-Range"] = "bytes %d-%d/%d" % (first, last, len(content))
        self.server.seen.append((self.path, status))
        if self.server.status:
            status = self.server.status
        if self.server.length:
            body, headers, self.close_connection = b"a part", {"ETag": etag}, True
        self.send_response(status)
        for name, value in {**headers, "Content-Length": self.server.length or str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.server.cuts and len(body) > 1 << 20:
            self.server.cuts -= 1
            self.wfile.write(body[:len(body) // 2])
            self.close_connection = True
            return
        try:
            self.wfile.write(body)
        except ConnectionError:  # the client saw enough
            self.close_connection = True


class Urls(place.Place):
    def setUp(self):
        super().setUp()
        self.server = Server()
        self.addCleanup(self.server.shutdown)
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]
        self.env.update(FLOW_FETCH_RETRIES="0", no_proxy="*")

    def script(self, file, parameters="{}"):
        self.write("pipeline.lua", READ % (parameters, file))

    def statuses(self):
        """The answers since the last call."""
        seen, self.server.seen = [status for _, status in self.server.seen], []
        return seen

    def result(self):
        return self.show()["result"]

    def files_with(self, text):
        """Files of the state that contain the text."""
        found = []
        for folder, _, names in os.walk(self.state):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    if text.encode() in file.read():
                        found.append(os.path.join(folder, name))
        return found

    def test_without_libcurl_the_error_says_what_to_install(self):
        os.mkdir(self.path("lib"))
        self.write("lib/libcurl.so.4", "no library")
        self.write("urls.lua", WHOLE)
        done = self.flow("run", "urls.lua", "--param", "data=http://127.0.0.1:9/a", LD_LIBRARY_PATH=self.path("lib"))
        self.exits(4, done, "URLs need libcurl 7.85 or later", "apt install libcurl4")

    def test_a_url_is_fetched_once_per_version(self):
        self.script("p.data", "{ data = flow.param.path { default = '%s/data.csv' } }" % self.url)
        self.good("run", "pipeline.lua")
        self.assertEqual(self.result(), "first")
        self.assertEqual(self.statuses(), [206, 206])
        self.good("run", "pipeline.lua")
        self.assertTrue(self.tasks()["read"]["cached"])
        self.assertEqual(self.statuses(), [304])
        self.server.content = b"second"
        self.good("run", "pipeline.lua")
        self.assertEqual(self.result(), "second")
        self.assertEqual(os.listdir(os.path.join(self.state, "downloads")), [])

    def test_ranges_without_a_strong_etag_are_not_joined(self):
        self.write("pipeline.lua", WHOLE)
        self.server.changes = True
        for cuts in (0, 1):
            self.server.cuts = cuts
            self.good("run", "pipeline.lua", "--param", "data=%s/x" % self.url, FLOW_FETCH_RETRIES="2")
            self.assertEqual(self.result(), [20 << 20, True])
        self.server.unasked = "0"
        self.good("run", "pipeline.lua", "--param", "data=%s/x" % self.url)
        self.assertEqual(self.result(), [20 << 20, True])
        self.server.unasked = "5"
        self.exits(2, self.flow("run", "pipeline.lua", "--param", "data=%s/x" % self.url), "a range that was not asked for")

    def test_new_options_of_a_url_do_not_change_what_a_resumed_run_has(self):
        digest = hashlib.sha256(b"first").hexdigest()
        held = HELD.replace("data = flow.param.path {}", "").replace("p.data", "flow.file('URL/x')")
        self.write("held.lua", (held % self.path("gate")).replace("URL", self.url))
        run = self.start("run", "held.lua")
        self.until_holds("one")
        self.kill(run)
        self.server.fails = True
        self.open("gate")
        self.write("held.lua", self.read("held.lua").replace("/x')", "/x', { sha256 = '%s' })" % digest))
        self.good("resume", "--code", "new")
        self.assertEqual(self.result(), "firstone\n")

    def test_answers_that_are_no_content_are_errors(self):
        self.script("flow.file('%s/x')" % self.url)
        self.server.status = 204
        self.exits(2, self.flow("run", "pipeline.lua"), "without content")
        self.server.status, self.server.length = 200, "9" * 30
        self.exits(2, self.flow("run", "pipeline.lua"), "Content-Length")

    def test_urls_in_a_list_of_names(self):
        self.write("list.lua", LIST)
        self.write("a.txt", "a")
        self.write("names", "\ufeff%s/x?key=hidden\na.txt\n" % self.url)
        self.good("run", "list.lua", "--param", "files=@names")
        self.assertEqual(self.result(), "first,a")
        self.server.fails = True
        done = self.flow("run", "list.lua", "--param", "files=@names")
        self.exits(2, done, "/x?…")
        self.assertNotIn("hidden", done.out + done.err)

    def test_help_and_errors_hide_secrets(self):
        url = self.url.replace("http://", "http://me:passw0rd@") + "/x?key=hidden"
        self.script("p.data", "{ data = flow.param.path { default = '%s' } }" % url)
        self.write("values.json", '{"data": ["%s"]}' % url)
        for done in (self.good("run", "pipeline.lua", "--help"),
                     self.exits(2, self.flow("run", "pipeline.lua", "--params", "values.json"), "the parameter `data`")):
            self.assertNotIn("passw0rd", done.out + done.err)
            self.assertNotIn("hidden", done.out + done.err)
            self.assertIn("/x?…", done.out + done.err)

    def test_content_keys_the_cache_and_not_the_url(self):
        self.script("p.data", "{ data = flow.param.path {} }")
        self.write("local.csv", "first")
        self.good("run", "pipeline.lua", "--param", "data=local.csv")
        self.good("run", "pipeline.lua", "--param", "data=%s/x?y" % self.url)
        self.assertTrue(self.tasks()["read"]["cached"])

    def test_sha256_is_checked(self):
        digest = hashlib.sha256(b"first").hexdigest()
        self.script("flow.file('%s/x', { sha256 = '%s' })" % (self.url, digest))
        self.good("run", "pipeline.lua")
        self.server.content = b"second"
        self.exits(2, self.flow("run", "pipeline.lua"), hashlib.sha256(b"second").hexdigest(), digest)
        self.script("flow.file('%s/x', { sha256 = '%s' })" % (self.url, hashlib.sha256(b"second").hexdigest()))
        self.good("run", "pipeline.lua")
        self.assertEqual(self.result(), "second")

    def test_offline_uses_the_copy(self):
        self.script("flow.file('%s/x')" % self.url)
        self.exits(2, self.flow("run", "pipeline.lua", "--offline"), "the state has no copy of `%s/x`" % self.url)
        self.assertEqual(self.statuses(), [])
        self.good("run", "pipeline.lua")
        self.server.content = b"second"
        self.statuses()
        self.good("run", "pipeline.lua", "--offline", "--fresh")
        self.assertEqual(self.result(), "first")
        self.script("flow.file('%s/x', { offline = true })" % self.url)
        self.good("run", "pipeline.lua", "--fresh")
        self.assertEqual(self.result(), "first")
        self.assertEqual(self.statuses(), [])

    def test_a_server_that_does_not_answer_is_an_error_before_anything_runs(self):
        self.script("flow.file('%s/x?token=hidden')" % self.url)
        self.good("run", "pipeline.lua")
        self.server.fails = True
        done = self.flow("run", "pipeline.lua")
        self.exits(2, done, "cannot fetch `%s/x?…`: the server answered 503" % self.url, "--offline")
        self.assertNotIn("hidden", done.out + done.err)
        self.assertEqual(len(self.runs()), 1)

    def test_resume_and_retry_never_ask(self):
        self.write("held.lua", HELD % self.path("gate"))
        run = self.start("run", "held.lua", "--param", "data=%s/x?token=hidden" % self.url)
        self.until_holds("one")
        self.kill(run)
        self.server.content = b"second"
        self.server.fails = True
        self.statuses()
        self.open("gate")
        self.good("resume")
        self.assertEqual(self.result(), "firstone\n")
        self.good("retry", "last", "read")
        self.good("resume", "last", "--code", "new")
        self.assertEqual(self.result(), "firstone\n")
        self.assertEqual(self.statuses(), [])

    def test_secrets_of_a_url_are_not_stored(self):
        url = self.url.replace("http://", "http://someone:passw0rd@") + "/x?token=hidden"
        self.script("p.data", "{ data = flow.param.path {} }")
        done = self.good("run", "pipeline.lua", "--param", "data=" + url, "--log-level", "debug")
        shown = self.good("show", "last", "--json")
        for secret in ("passw0rd", "hidden"):
            self.assertNotIn(secret, done.out + done.err + shown.out)
            self.assertEqual(self.files_with(secret), [])

    def test_plan_fetches_nothing(self):
        self.script("flow.file('%s/x')" % self.url)
        planned = self.good("plan", "pipeline.lua")
        self.assertIn("waits for `%s/x`, which is fetched when the run starts" % self.url, planned.out)
        self.assertEqual(self.statuses(), [])
        self.good("run", "pipeline.lua")
        self.statuses()
        self.assertIn("cached", self.good("plan", "pipeline.lua").out)
        self.assertEqual(self.statuses(), [304])
        self.server.content = b"second"
        self.assertIn("unknown", self.good("plan", "pipeline.lua").out)

    def test_wrong_calls_are_errors(self):
        for call, text in (("flow.file('http://')", "is not valid"),
                           ("flow.file('s3://bucket/')", "does not name an object"),
                           ("flow.file('%s/x', { sha = 'x' })" % self.url, "no option `sha`"),
                           ("flow.file('%s/x', { sha256 = 'x' })" % self.url, "64 lower-case hexadecimal digits"),
                           ("flow.file('x.csv', { offline = true })", "only a URL has options"),
                           ("flow.files.groups('http://host/{a}_{b}')", "a web server has no list of files")):
            self.script(call)
            self.exits(2, self.flow("run", "pipeline.lua"), text)
        self.write("pipeline.lua", "local flow = require 'flow'\nlocal x = flow.file('%s/x')\n" % self.url)
        self.exits(2, self.flow("run", "pipeline.lua"), "flow.file of a URL is called while the script loads")


if __name__ == "__main__":
    place.main()
