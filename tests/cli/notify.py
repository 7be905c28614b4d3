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
from place import SCALED, Place, main, unused_port  # noqa: E402

SCRIPT = r"""
local flow = require "flow"
local work = flow.task("work", function(ctx, fails)
  if fails then error("no luck") end
  return { answer = 42 }
end)
return flow.pipeline("p", { fails = flow.param.boolean { default = false } }, function(p) return work(p.fails) end)
"""
WAITS = r"""
local flow = require "flow"
local t = flow.task("t", function(ctx) return ctx:wait("go") end)
return flow.pipeline("p", {}, function() return t() end)
"""
KEY = "correct horse battery staple"


def tells(name):
    """A command that writes what it is given to the file, whole."""
    return "cat > %s.part && mv %s.part %s" % (name, name, name)


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

    def clean(self):
        # Processes in the background end with their runs.
        for run in self.runs() if os.path.exists(self.state) else []:
            if run["status"] in ("running", "serving", "waiting"):
                self.flow("stop", run["run"], "--grace", "1s")
        super().clean()

    def told(self, name):
        """What a command that tells() was given; the next one may write it again."""
        self.until(name + " is told", lambda: os.path.exists(self.path(name)))
        told = json.loads(self.read(name))
        os.remove(self.path(name))
        return told

    def leaves(self, *words):
        """A command with --detach, of a run that fails: perhaps before the command has ended."""
        done = self.flow(*words, "--detach")
        self.assertIn(done.code, (0, 1), done)

    def marks(self, *names):
        """Those of these files that are there. Removes them."""
        there = [name for name in names if os.path.exists(self.path(name))]
        for name in there:
            os.remove(self.path(name))
        return there

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
                ('on = ["done"]', ["must be a list of `succeeded`, `failed` and `cancelled`, but this list is empty or has another item"]),
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

    def test_a_run_that_is_continued_replaces_on_end_and_keeps_the_rest(self):
        files = ("of-file", "of-line", "of-command")
        for own, given in (("of-file", ()), ("of-line", ("--on-end", "touch of-line"))):
            with self.subTest(own=own):
                self.write("flow.toml", '[notify]\non_end = "touch of-file"\ncommand = "touch of-command"\n')
                self.exits(1, self.flow("run", "p.lua", "--param", "fails=true", *given))
                self.assertEqual(self.marks(*files), [own, "of-command"])
                os.remove(self.path("flow.toml"))  # the run keeps it
                for verb in ("resume", "retry"):
                    self.exits(1, self.flow(verb, "last", "--on-end", tells(verb)))
                    self.assertEqual(self.told(verb), self.show())
                    self.assertEqual(self.marks(*files), ["of-command"])
                self.exits(1, self.flow("resume"))  # it has the newest now
                self.assertEqual(self.told("retry"), self.show())
                self.assertEqual(self.marks("resume", *files), ["of-command"])
                self.exits(1, self.flow("resume", "--code", "new"))  # reads the files again, of which there are none
                self.assertEqual(self.told("retry"), self.show())
                self.assertEqual(self.marks("resume", *files), [])

    def test_a_run_without_notifications_gets_some_when_it_is_continued(self):
        self.exits(1, self.flow("run", "p.lua", "--param", "fails=true"))
        os.mkdir(self.path("below"))
        away = self.start("resume", "last", "--state", self.state, "--on-end", tells("told"), before=("env", "-C", self.path("below")))
        self.exits(1, self.end(away))
        self.assertEqual(self.told("told"), self.show())  # in the folder in which the run was submitted
        self.leaves("resume", "last", "--on-end", tells("behind"))
        self.assertEqual(self.told("behind"), self.show())
        self.exits(1, self.flow("resume", "--code", "new", "--on-end", tells("anew")))
        self.assertEqual(self.told("anew"), self.show())
        self.assertEqual(self.marks("told", "behind"), [])

    def test_the_statuses_of_the_configuration_are_those_of_a_later_command(self):
        self.write("flow.toml", '[notify]\non = ["succeeded"]\n')
        self.exits(1, self.flow("run", "p.lua", "--param", "fails=true"))
        self.exits(1, self.flow("resume", "last", "--on-end", tells("told")))
        self.assertEqual(self.marks("told"), [])
        self.write("p.lua", SCRIPT.replace("if fails", "if false"))
        self.good("resume", "last", "--code", "new")
        self.assertEqual(self.told("told"), self.show())

    def test_what_a_resume_gives_survives_the_kill_of_its_process(self):
        endpoint = self.endpoint()
        self.write("p.lua", WAITS)
        run = self.start("run", "p.lua", "--on-end", "touch of-line")
        self.until_waits("t")
        self.kill(run)
        again = self.start("resume", "last", "--on-end", endpoint.url)
        self.until("it is resumed", lambda: [each["action"] for each in self.show().get("actions", [])] == ["resume"])
        self.kill(again)
        third = self.start("resume", "last")
        self.until("it is resumed", lambda: [each["action"] for each in self.show()["actions"]] == ["resume"] * 2)
        self.good("signal", "last", "go")
        self.exits(0, self.end(third))
        self.assertEqual([json.loads(body) for _, _, body in endpoint.requests], [self.show()])
        self.assertEqual(self.marks("of-line"), [])

    def serves_again(self, *words):
        """A run, and the versions of its services that serve, deploy and rollback start with an --on-end of their own."""
        self.write("s.lua", SCALED)
        first = self.detached("run", "s.lua", "--name", "prod", "--on-end", tells("first"), *words)
        again = self.detached("serve", first["run"], "--on-end", tells("again"), *words)
        self.assertEqual(self.told("first")["run"], first["run"])
        other = self.detached("deploy", first["run"], "--name", "other", "--on-end", tells("other"), *words)
        back = self.detached("rollback", "prod", "--on-end", tells("back"), *words)
        self.assertEqual(self.told("again")["run"], again["run"])
        for left, name in ((other, "other"), (back, "back")):
            self.good("stop", left["run"], *words)
            told = self.told(name)
            self.assertEqual((told["run"], told["status"]), (left["run"], "succeeded"))
        self.assertEqual(self.marks("first", "again", "other", "back"), [])

    def test_a_version_of_a_service_has_an_on_end_of_its_own(self):
        self.serves_again()

    def test_a_head_takes_on_end_of_its_clients(self):
        address = "127.0.0.1:%d" % unused_port()
        self.start("head", "--listen", address, "--jobs", "2")
        self.until("the head listens", lambda: os.path.exists(os.path.join(self.state, "socket")))
        words = ("--head", address, "--secret-file", os.path.join(self.state, "secret"))
        self.exits(1, self.flow("run", "p.lua", "--param", "fails=true", *words))
        for verb in ("resume", "retry"):
            self.exits(1, self.flow(verb, "last", "--on-end", tells(verb), *words))
            self.assertEqual(self.told(verb), self.show())
        self.leaves("resume", "last", "--on-end", tells("behind"), *words)
        self.assertEqual(self.told("behind"), self.show())
        self.assertEqual(self.marks("resume", "retry"), [])
        self.serves_again(*words)

    def test_a_wrong_on_end_is_found_before_a_run_is_continued(self):
        self.exits(1, self.flow("run", "p.lua", "--name", "p", "--param", "fails=true"))
        before = self.show()
        for words in (("resume", "p"), ("resume", "p", "--code", "new"), ("retry", "p"), ("serve", "p"),
                      ("deploy", "p", "--name", "other"), ("rollback", "p")):
            with self.subTest(words=words):
                self.exits(2, self.flow(*words, "--on-end", "s3://b/x"), "--on-end: `s3://b/x` is not a URL of a webhook")
        self.assertEqual((self.show(), len(self.runs())), (before, 1))


if __name__ == "__main__":
    main()
