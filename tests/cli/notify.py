#!/usr/bin/env python3
"""Notifications of the end of a run: webhooks with their signature, commands, retries, and what a killed process leaves.

usage: notify.py --flow BIN [TEST...]
"""
import hashlib
import hmac
import json
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from http_double import HttpDouble  # noqa: E402
from place import Place, main  # noqa: E402

SCRIPT = r"""
local flow = require "flow"
local work = flow.task("work", function(ctx, fails)
  if fails then error("no luck") end
  return { answer = 42 }
end)
return flow.pipeline("p", { fails = flow.param.boolean { default = false } }, function(p) return work(p.fails) end)
"""
KEY = "correct horse battery staple"


class Endpoint(HttpDouble):
    """Records what is posted. Answers with `statuses` in turn, then with 200; holds its answers while it is `held`."""

    def __init__(self, statuses=(), held=False):
        self.requests, self.statuses = [], list(statuses)
        self.changed, self.free = threading.Condition(), threading.Event()
        if not held:
            self.free.set()
        super().__init__()
        self.url += "/hooks/T0P-SECRET-PATH"

    def answer(self, handler, body):
        with self.changed:
            self.requests.append((handler.path, dict(handler.headers), body))
            status = self.statuses.pop(0) if self.statuses else 200
            self.changed.notify_all()
        self.free.wait()
        return status, b""

    def close(self):
        self.free.set()
        super().close()

    def await_requests(self, count):
        with self.changed:
            return self.changed.wait_for(lambda: len(self.requests) >= count, 120)

    def deliveries(self):
        return [headers["X-Flow-Delivery"] for _, headers, _ in self.requests]


class Notifications(Place):
    def setUp(self):
        super().setUp()
        self.write("p.lua", SCRIPT)

    def endpoint(self, *statuses, held=False):
        endpoint = Endpoint(statuses, held)
        self.addCleanup(endpoint.close)
        return endpoint

    def check_signature(self, headers, body):
        fields = dict(field.split("=", 1) for field in headers["X-Flow-Signature"].split(","))
        signed = fields["t"].encode() + b"." + body
        self.assertEqual(fields["v1"], hmac.new(KEY.encode(), signed, hashlib.sha256).hexdigest())

    def test_a_webhook_gets_the_run_with_a_signature(self):
        endpoint = self.endpoint()
        self.write("flow.toml", '[notify]\nwebhook = "%s"\nsecret = { env = "HOOK_KEY" }\n' % endpoint.url)
        self.good("run", "p.lua", HOOK_KEY=KEY)
        self.assertEqual(len(endpoint.requests), 1)
        path, headers, body = endpoint.requests[0]
        self.assertEqual(path, "/hooks/T0P-SECRET-PATH")
        self.assertEqual(headers["Content-Type"], "application/json")
        self.check_signature(headers, body)
        self.assertEqual(json.loads(body), self.show())
        # It was told once: later processes of the state do not repeat it.
        self.good("gc", "--keep", "5")
        self.assertEqual(len(endpoint.requests), 1)

    def test_a_command_gets_the_run(self):
        self.good("run", "p.lua", "--on-end", 'cat > told.json; echo "$FLOW_RUN $FLOW_STATUS" > told.txt')
        run = self.show()
        self.assertEqual(json.loads(self.read("told.json")), run)
        self.assertEqual(self.read("told.txt"), run["run"] + " succeeded\n")

    def test_a_failing_command_changes_nothing_and_is_reported(self):
        done = self.good("run", "p.lua", "--on-end", "echo the mail is full >&2; exit 7")
        self.exits(0, done, "its exit code is 7: the mail is full", "It is not tried again")
        self.assertEqual(self.show()["status"], "succeeded")

    def test_a_webhook_that_fails_is_tried_again_under_the_same_id(self):
        endpoint = self.endpoint(500, 503)
        done = self.good("run", "p.lua", "--on-end", endpoint.url)
        self.assertEqual(len(endpoint.requests), 3)
        self.assertEqual(len(set(endpoint.deliveries())), 1)
        self.assertNotIn("webhook", done.err)

    def test_a_webhook_that_refuses_is_not_tried_again(self):
        endpoint = self.endpoint(404)
        done = self.good("run", "p.lua", "--on-end", endpoint.url)
        self.exits(0, done, "the server answered 404", "It is not tried again")
        self.good("gc", "--keep", "5")
        self.assertEqual(len(endpoint.requests), 1)

    def test_a_dead_endpoint_holds_neither_the_exit_nor_its_code(self):
        endpoint = self.endpoint(held=True)  # answers only after flow has ended
        done = self.exits(1, self.flow("run", "p.lua", "--param", "fails=true", "--on-end", endpoint.url))
        self.assertIn("The next flow that writes this state tries it again", done.err)
        self.assertNotIn("T0P-SECRET-PATH", done.err + done.out)
        endpoint.free.set()
        sent = len(endpoint.requests)
        self.good("gc", "--keep", "5")  # opens the state as its writer
        self.assertEqual(len(endpoint.requests), sent + 1)
        self.assertEqual(len(set(endpoint.deliveries())), 1)
        self.assertEqual(json.loads(endpoint.requests[-1][2])["status"], "failed")
        self.good("gc", "--keep", "5")
        self.assertEqual(len(endpoint.requests), sent + 1)

    def test_the_next_process_tells_what_a_killed_one_could_not(self):
        for failpoint, sent in (("notify-before-send", 0), ("notify-before-record", 1)):
            with self.subTest(failpoint=failpoint):
                endpoint = self.endpoint()
                done = self.flow("run", "p.lua", "--fresh", "--on-end", endpoint.url, FLOW_FAILPOINT=failpoint)
                self.assertEqual(done.code, -9, done)
                self.assertEqual(len(endpoint.requests), sent)
                self.good("gc", "--keep", "5")
                self.good("gc", "--keep", "5")
                self.assertEqual(len(endpoint.requests), sent + 1)
                self.assertEqual(len(set(endpoint.deliveries())), 1)
                self.assertEqual(json.loads(endpoint.requests[-1][2]), self.show())

    def test_only_the_statuses_of_the_configuration_are_told(self):
        endpoint = self.endpoint()
        self.write("flow.toml", '[notify]\nwebhook = "%s"\non = ["failed"]\n' % endpoint.url)
        self.good("run", "p.lua")
        self.assertEqual(endpoint.requests, [])
        self.exits(1, self.flow("run", "p.lua", "--param", "fails=true"))
        self.exits(1, self.flow("resume"))  # another end of the same run
        self.assertEqual([json.loads(body)["status"] for _, _, body in endpoint.requests], ["failed", "failed"])
        self.assertEqual(len(set(endpoint.deliveries())), 2)

    def test_a_cancelled_run_is_told(self):
        endpoint = self.endpoint()
        self.write("p.lua", 'local flow = require "flow"\nlocal t = flow.task("t", function(ctx) return ctx:wait("go") end)\n'
                   'return flow.pipeline("p", {}, function() return t() end)')
        run = self.start("run", "p.lua", "--on-end", endpoint.url)
        self.until_waits("t")
        self.good("cancel", "last")
        self.exits(1, self.end(run))
        self.assertEqual([json.loads(body)["status"] for _, _, body in endpoint.requests], ["cancelled"])

    def test_secrets_are_in_no_output(self):
        endpoint = self.endpoint(500)
        self.write("flow.toml", '[notify]\nwebhook = { env = "HOOK_URL" }\nsecret = { env = "HOOK_KEY" }\n')
        done = self.good("run", "p.lua", "--log-file", "flow.log", "--log-level", "trace", HOOK_KEY=KEY, HOOK_URL=endpoint.url)
        self.assertEqual(len(endpoint.requests), 2)
        self.check_signature(*endpoint.requests[1][1:])
        log = self.read("flow.log")
        self.assertIn("notification failed", log)
        self.assertIn("the webhook of the variable HOOK_URL", log)
        for secret in (KEY, "T0P-SECRET-PATH"):
            self.assertNotIn(secret, done.out + done.err + log)
            for folder, _, files in os.walk(self.state):
                for name in files:
                    with open(os.path.join(folder, name), "rb") as file:
                        self.assertNotIn(secret.encode(), file.read(), name)

    def test_the_configuration_of_the_document(self):
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
        with open(os.path.join(root, "docs", "operations.md")) as document:
            block = document.read().split("```toml\n[notify]")[1].split("```")[0]
        self.write("flow.toml", "[notify]" + block)
        self.write("mail", '#!/bin/sh\necho "$@" > mail.txt\ncat > mail.json\n')
        os.chmod(self.path("mail"), 0o755)
        endpoint = self.endpoint()
        env = {"TEAM_WEBHOOK": endpoint.url, "TEAM_WEBHOOK_KEY": KEY, "PATH": self.folder + ":" + os.environ["PATH"]}
        self.good("run", "p.lua", **env)
        self.assertEqual(endpoint.requests, [])
        self.exits(1, self.flow("run", "p.lua", "--param", "fails=true", **env))
        self.assertEqual(self.read("mail.txt"), "-s flow: failed ann@example.org\n")
        self.assertEqual(json.loads(self.read("mail.json")), self.show())
        (request,) = endpoint.requests
        self.check_signature(*request[1:])

    def test_wrong_settings_are_found_before_anything_runs(self):
        for text, words in (
                ('webhook = "ftp://x"', ["is not a URL of a webhook"]),
                ('webhook = { env = "NO_SUCH" }', ["the variable NO_SUCH is not set", "flow.toml:2"]),
                ('secret = { env = "NO_SUCH" }', ["the variable NO_SUCH is not set"]),
                ('on = ["done"]', ["must be a list of `succeeded`, `failed` and `cancelled`"]),
                ('web = "x"', ["[notify] has no option `web`"])):
            with self.subTest(text=text):
                self.write("flow.toml", "[notify]\n%s\n" % text)
                self.exits(2, self.flow("run", "p.lua"), *words)
        os.remove(self.path("flow.toml"))
        self.exits(2, self.flow("run", "p.lua", "--on-end", "https://"), "--on-end")
        self.assertEqual(self.runs(), [])

    def test_the_command_line_replaces_on_end_of_the_file(self):
        self.write("flow.toml", '[notify]\non_end = "touch of-file"\ncommand = "touch of-command"\n')
        self.good("run", "p.lua", "--on-end", "touch of-line")
        self.assertEqual([os.path.exists(self.path(name)) for name in ("of-file", "of-command", "of-line")],
                         [False, True, True])
        shown = {row["option"]: row for row in self.good("plan", "p.lua", "--explain-config", "--json").lines()
                 if row["table"] == "notify"}
        self.assertEqual((shown["on_end"]["value"], shown["on_end"]["has_effect"]), ("touch of-file", True))


if __name__ == "__main__":
    main()
