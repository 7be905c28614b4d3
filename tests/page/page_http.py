#!/usr/bin/env python3
"""flow ui over HTTP: who may ask, what is answered, and how it ends.

usage: page_http.py --flow BIN [TEST...]
"""
import base64
import hashlib
import http.client
import json
import os
import re
import select
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from page_place import ASKS, PRICES, SCRIPT, SERVES, SHAPES, WAITS, PagePlace  # noqa: E402
from place import main  # noqa: E402

POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
          "form-action 'none'; frame-ancestors 'none'")
CLIENT = "127.x"  # stands for the address of the client


class Events:
    """The stream of one page."""

    def __init__(self, place, run=""):
        self.connection = http.client.HTTPConnection(place.host, place.port, timeout=60)
        self.connection.request("GET", "/api/events?run=" + run, headers={"Cookie": place.cookie})
        self.answer = self.connection.getresponse()
        place.addCleanup(self.connection.close)

    def next(self):
        """(event, data)"""
        name = None
        while True:
            line = self.answer.readline().decode().rstrip("\n")
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                return name, json.loads(line[6:])

    def until(self, holds):
        while True:
            event = self.next()
            if holds(*event):
                return event


class PageHttp(PagePlace):
    def setUp(self):
        super().setUp()
        self.write("mixed.lua", SCRIPT)
        self.write("waits.lua", WAITS)

    def start_waiting(self):
        process = self.start("run", "waits.lua", "--param", "path=" + self.path("gate"), "--name", "held")
        self.until_holds("first")
        return process

    # ---- who may ask

    def test_without_the_token_everything_is_refused(self):
        self.open_page()
        for path in ("/", "/assets/app.js", "/api/session", "/api/runs", "/api/runs/last", "/api/events"):
            self.assertEqual(self.ask(path)[0], 401, path)
        self.assertEqual(self.ask("/api/runs/last/cancel", "POST")[0], 401)
        status, _, body = self.ask("/?token=wrong")
        self.assertEqual(status, 403)
        self.assertIn("flow ui", body)
        self.assertEqual(self.ask("/api/runs?token=" + self.link.split("=")[1])[0], 401, "the token is for the page's address only")

    def test_the_token_becomes_a_cookie_of_this_page(self):
        self.open_page()
        cookie = self.log_in()
        self.assertRegex(cookie, r"^flow_page_%d=[\w-]{43}; HttpOnly; SameSite=Strict; Path=/$" % self.port)
        self.assertNotIn(self.link.split("=")[1], cookie)
        status, headers, body = self.ask("/")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertNotRegex(body, r"<script(?![^>]*src=)|<style|style=|\son\w+=|http:|https:", "no inline code, no other host")
        self.assertEqual(self.ask("/assets/app.js")[1]["Content-Type"], "text/javascript; charset=utf-8")
        self.assertEqual(self.ask("/assets/none.js")[0], 404)

    def test_each_response_has_the_policy(self):
        self.flow("run", "mixed.lua", "--quiet")
        self.open_page()
        answers = [self.ask("/"), self.ask("/?token=wrong"), self.ask("/api/runs")]
        self.log_in()
        answers += [self.ask(path) for path in ("/", "/assets/page.css", "/api/runs", "/api/runs/last", "/api/runs/nothing")]
        for status, headers, _ in answers:
            self.assertEqual(headers["Content-Security-Policy"], POLICY, status)
            self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
            self.assertEqual(headers["Referrer-Policy"], "no-referrer")
            self.assertEqual(headers["Cache-Control"], "no-store")

    def test_other_hosts_and_origins_are_refused(self):
        self.open_page()
        self.log_in()
        own = "%s:%d" % (self.host, self.port)
        self.assertEqual(self.ask("/api/runs", host="localhost:9000")[0], 200, "a forwarded port")
        for host in ("evil.example:%d" % self.port, "intranet", "192.168.0.7", "127.0.0.1.evil.example"):
            self.assertEqual(self.ask("/api/runs", host=host)[0], 403, host)
        self.assertEqual(self.ask("/api/runs", Origin="http://" + own)[0], 200)
        for origin in ("http://evil.example", "http://127.0.0.1:1", "null"):
            self.assertEqual(self.ask("/api/runs", Origin=origin)[0], 403, origin)

    # ---- what is answered

    def test_the_data_is_that_of_the_verbs(self):
        self.flow("run", "mixed.lua", "--name", "nightly", "--quiet")
        self.flow("run", "mixed.lua", "--param", "lr=0.1", "--quiet")
        self.open_page()
        self.log_in()
        rows = [dict(row, result=None) for row in reversed(self.runs())]
        self.assertEqual(self.data("/api/runs"), {"total": 2, "matching": 2, "runs": rows})
        self.assertEqual(self.data("/api/runs", q="NIGHT")["runs"], rows[1:])
        self.assertEqual(self.data("/api/runs", q="0.1")["runs"], rows[:1])
        self.assertEqual(self.data("/api/runs", status="succeeded"), {"total": 2, "matching": 0, "runs": []})
        run = self.show("nightly")
        self.assertEqual(self.data("/api/runs/nightly"), run)
        lines = [dict(line, tag=line.get("tag")) for line in self.flow("logs", "nightly", "--json").lines()]
        self.assertEqual(self.data("/api/runs/nightly/logs")["lines"], lines)
        found = self.data("/api/runs/nightly/logs", task="work[3]@2", q="STEP 4")
        self.assertEqual((found["total"], found["matching"], found["lines"][0]["text"]), (5, 1, "step 4 of part 3"))
        for name in ("work[3]", "tool"):
            task = self.data("/api/runs/nightly/task", name=name)
            self.assertEqual(task["task"], next(each for each in run["tasks"] if each["name"] == name))
            self.assertEqual(task["why"].strip(), json.loads(self.good("why", "nightly", name, "--verbose", "--json").out)["why"])
        values = self.data("/api/runs/nightly/values", task="work[2]")
        self.assertEqual([json.loads(values[each]) for each in ("arguments", "result")], [[2], 4])
        failed = self.data("/api/runs/nightly/values", task="work[3]")
        self.assertEqual((json.loads(failed["arguments"]), failed["result"]), ([3], None))
        self.assertEqual(self.data("/api/runs/nightly/values", task="sum"), {"arguments": None, "result": None, "parts": []}, "it was skipped")
        series = self.data("/api/runs/nightly/metrics", task="work[2]")["series"]
        self.assertEqual([(each["metric"], [point[:2] for point in each["points"]]) for each in series],
                         [("loss", [[i, 2 / i] for i in range(1, 6)])])
        graph = json.loads(self.good("graph", "nightly", "--format", "json").out)
        nodes = {node["name"]: node["needs"] for node in self.data("/api/runs/nightly/graph")["nodes"]}
        self.assertEqual(nodes, {node["name"]: node["needs"] for node in graph["nodes"]})

    def test_what_does_not_exist_is_said(self):
        self.flow("run", "mixed.lua", "--quiet")
        self.open_page()
        self.log_in()
        for path, status, word in (("/api/runs/nothing", 404, "nothing"), ("/api/runs/last/task?name=nothing", 404, "nothing"),
                                   ("/api/runs/last/logs?task=nothing", 404, "nothing"), ("/api/none", 404, "/api/none"),
                                   ("/api/runs/last/values?task=nothing", 404, "nothing"), ("/api/runs/last/signal", 405, "POST"),
                                   ("/api/runs/last/cancel", 405, "POST")):
            got, _, body = self.ask(path)
            self.assertEqual(got, status, path)
            self.assertIn(word, json.loads(body)["error"])

    def test_events_say_what_changed(self):
        self.open_page()
        self.log_in()
        # The state does not exist yet.
        self.assertEqual(self.data("/api/runs"), {"total": 0, "matching": 0, "runs": []})
        every = Events(self)
        self.assertEqual(every.next(), ("reload", {"writer": False}))
        process = self.start_waiting()
        _, data = every.until(lambda kind, data: kind == "runs" and data["changed"])
        self.assertEqual((data["writer"], data["changed"][0]["name"]), (True, "held"))
        run = data["changed"][0]["run"]
        one = Events(self, run)
        self.assertEqual(one.next(), ("reload", {"writer": True}))
        self.open("gate")
        self.exits(0, self.end(process))
        _, last = one.until(lambda kind, data: kind == "run" and data["status"] == "succeeded")
        self.assertEqual(last["counts"]["succeeded"], 1)
        seen = {"writer": True}

        def has_ended(kind, data):
            seen.update(data)
            for row in data["changed"]:
                seen["status"] = row["status"]
            return seen.get("status") == "succeeded" and not seen["writer"]
        every.until(has_ended)

    # ---- actions

    def test_a_run_is_cancelled_by_its_writer_only(self):
        self.open_page()
        self.log_in()
        process = self.start_waiting()
        token = self.data("/api/session")["token"]
        own = {"Origin": "http://%s:%d" % (self.host, self.port)}
        self.assertEqual(self.ask("/api/runs/held/cancel", "POST", **own)[0], 403, "no token")
        self.assertEqual(self.ask("/api/runs/held/cancel", "POST", X_Flow_Token=token)[0], 403, "no origin")
        self.assertEqual(self.ask("/api/runs/held/cancel", "POST", X_Flow_Token=self.link.split("=")[1], **own)[0], 403, "another token")
        self.assertEqual(self.show("held")["status"], "running")
        status, _, body = self.ask("/api/runs/held/cancel", "POST", X_Flow_Token=token, **own)
        self.assertEqual((status, json.loads(body)), (200, {"run": self.show("held")["run"]}), body)
        self.exits(1, self.end(process))
        self.assertEqual(self.show("held")["status"], "cancelled")
        # Now no process writes the state.
        status, _, body = self.ask("/api/runs/held/cancel", "POST", X_Flow_Token=token, **own)
        self.assertEqual(status, 409)
        self.assertIn("`flow cancel %s --state %s`" % (self.show("held")["run"], self.state), json.loads(body)["error"])

    def test_a_suspended_writer_holds_up_neither_views_nor_the_end(self):
        page = self.open_page()
        self.log_in()
        writer = self.start_waiting()
        token = self.data("/api/session")["token"]
        own = "http://%s:%d" % (self.host, self.port)
        writer.send_signal(signal.SIGSTOP)
        self.addCleanup(writer.send_signal, signal.SIGCONT)
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        self.addCleanup(connection.close)
        connection.request("POST", "/api/runs/held/cancel", headers={"Cookie": self.cookie, "Origin": own, "X-Flow-Token": token})
        self.assertEqual(self.data("/api/runs/held")["status"], "running")
        self.assertEqual(len(self.data("/api/runs")["runs"]), 1)
        self.assertEqual(select.select([connection.sock], [], [], 0)[0], [], "the action has no answer yet")
        page.send_signal(signal.SIGINT)
        self.exits(0, self.end(page))
        self.assertNotIn(b"503", connection.sock.recv(100), "the end did not wait for the writer")

    def test_a_signal_answers_a_task_that_waits(self):
        self.write("asks.lua", ASKS)
        self.open_page()
        self.log_in()
        process = self.start("run", "asks.lua", "--name", "asked")
        self.until_waits("ask")
        fields = {"Origin": "http://%s:%d" % (self.host, self.port), "X_Flow_Token": self.data("/api/session")["token"]}
        path = "/api/runs/asked/signal?name=approved"
        self.assertEqual(self.ask(path, "POST", Origin=fields["Origin"], body="true")[0], 403, "no token")
        for wrong in ("", "yes", "{"):
            status, _, body = self.ask(path, "POST", **fields, body=wrong)
            self.assertEqual(status, 400)
            self.assertIn("not JSON", body)
        self.assertEqual(self.ask("/api/runs/asked/signal", "POST", **fields, body="true")[0], 400, "no name")
        status, _, body = self.ask(path, "POST", **fields, body='{"by":"ann"}')
        self.assertEqual(status, 200, body)
        self.exits(0, self.end(process))
        self.assertEqual(self.show("asked")["result"], {"by": "ann"})
        status, _, body = self.ask(path, "POST", **fields, body="true")
        self.assertEqual(status, 409)
        self.assertIn("flow signal %s approved JSON --state " % self.show("asked")["run"], body)
        _, _, body = self.ask("/api/runs/asked/signal?name=it%27s+on", "POST", **fields, body="true")
        self.assertIn("flow signal %s 'it'\\''s on' JSON --state " % self.show("asked")["run"], json.loads(body)["error"])

    def test_a_run_and_a_task_are_retried(self):
        self.lead()
        self.exits(1, self.flow("run", "mixed.lua", "--name", "nightly", "--quiet"))
        run = self.show("nightly")
        self.open_page()
        self.log_in()
        self.assertEqual(self.data("/api/session")["who"], self.user())
        self.assertEqual(self.act("/api/runs/nightly/retry"), {"run": run["run"]})
        self.until("two more attempts", lambda: self.tasks("nightly")["work[3]"]["attempts"] == 4 and self.show("nightly")["status"] == "failed")
        self.act("/api/runs/nightly/retry", task="load")
        self.until("another attempt", lambda: self.tasks("nightly")["load"]["attempts"] == 2 and self.show("nightly")["status"] == "failed")
        self.kill(self.head)
        fields = {"Origin": self.address.rstrip("/"), "X_Flow_Token": self.data("/api/session")["token"]}
        for path, command in (("retry?task=work%5B3%5D", "flow retry %s 'work[3]' --state " % run["run"]), ("retry", "flow retry %s --state " % run["run"]),
                              ("stop", "flow stop %s --state " % run["run"]), ("rollback", "flow rollback nightly --state ")):
            status, _, body = self.ask("/api/runs/nightly/" + path, "POST", **fields)
            self.assertEqual(status, 409)
            self.assertIn(command, json.loads(body)["error"])

    def test_runs_are_stopped_signalled_and_cancelled(self):
        self.write("asks.lua", ASKS)
        self.lead()
        self.open_page()
        self.log_in()
        held = self.start("run", "waits.lua", "--param", "path=" + self.path("gate"), "--name", "held")
        self.until_holds("first")
        self.open("gate")
        self.end(held)
        asks = self.start("run", "asks.lua", "--name", "asked")
        self.until_waits("ask", "asked")
        self.act("/api/runs/asked/signal", body='"yes"', name="approved")
        self.exits(0, self.end(asks))
        self.assertEqual(self.show("asked")["result"], "yes")
        by = "%s@127." % self.user()
        (asked,) = self.show("asked")["actions"]
        self.assertEqual((asked["action"], asked["name"]), ("signal", "approved"))
        self.assertTrue(asked["by"].startswith(by) and asked["by"].endswith(" (page)"), asked)
        other = self.start("run", "waits.lua", "--param", "path=" + self.path("other"), "--name", "other", "--grace", "1s")
        self.until_holds("first", "other")
        self.until("the page has read it", lambda: "other" in [run["name"] for run in self.data("/api/runs")["runs"]])
        self.act("/api/runs/other/stop")
        self.end(other)
        self.assertEqual(self.show("other")["status"], "interrupted")
        self.act("/api/runs/other/cancel")
        self.assertEqual(self.show("other")["status"], "cancelled")
        self.assertEqual([each["action"] for each in self.show("other")["actions"]], ["stop", "cancel"])

    def test_a_service_is_shown_and_rolled_back(self):
        for factor in (2, 3):
            self.write("v%d.lua" % factor, SERVES.replace("FACTOR", str(factor)))
        self.lead()
        self.good("run", "v2.lua", "--name", "prod", "--detach")
        first = self.show("prod")["run"]
        self.good("run", "v3.lua", "--name", "prod", "--detach")
        self.until("the first one has ended", lambda: self.show(first)["status"] == "succeeded")
        self.open_page("--token-name", "deploy")
        self.log_in()
        shown = self.data("/api/services")
        listed = self.good("services", "--json").lines()
        stable = ("name", "status", "service", "version", "url", "replicas", "requests", "percent")
        self.assertEqual([[each[field] for field in stable] for each in shown["services"]], [[each[field] for field in stable] for each in listed])
        self.assertEqual([run["run"] for run in shown["runs"]], [listed[0]["version"]])
        for number in range(3):
            self.request(listed[0]["url"], number)
        (service,) = self.data("/api/services")["services"]
        counted = self.durations(listed[0]["url"], service["version"])
        self.assertEqual(sum(bucket["requests"] for bucket in service["latency"]), 3)
        self.assertEqual({"+Inf" if bucket["up_to_ms"] is None else "%g" % (bucket["up_to_ms"] / 1e3): bucket["requests"] for bucket in service["latency"]}, counted)
        run = self.act("/api/runs/prod/rollback")["run"]
        (action,) = self.show(run)["actions"]
        self.assertEqual(action["action"], "rollback")
        self.assertRegex(action["by"], r"^deploy@127[.\d]+ \(page\)$")
        self.assertNotIn(run, (first, listed[0]["version"]))
        self.until("it serves", lambda: self.show(run)["status"] == "serving" and self.show(listed[0]["version"])["status"] == "succeeded")
        self.assertEqual({task["user"] for task in self.show(run)["tasks"]}, {"deploy"})
        self.act("/api/runs/%s/stop" % run)  # of two runs of one second any may be the newest of the name
        self.assertEqual(self.show(run)["status"], "succeeded")

    # ---- other views

    def test_workers_and_what_waits(self):
        self.lead()
        self.open_page()
        self.log_in()
        self.start("run", "waits.lua", "--param", "path=" + self.path("gate"), "--name", "held")
        self.until_holds("first")
        cluster = self.data("/api/cluster")
        self.assertEqual(cluster["nodes"], self.good("nodes", "--json").lines())
        self.assertEqual(cluster["nodes"][0]["tasks"], ["%s hold" % self.show("held")["run"]])
        self.write("asks.lua", ASKS)
        self.start("run", "asks.lua", "--name", "asked")
        self.until_waits("ask", "asked")
        waiting = self.data("/api/waiting")
        task = self.tasks("asked")["ask"]
        self.assertEqual(waiting, {"total": 1, "tasks": [{"run": self.show("asked")["run"], "name": "asked", "task": "ask", "tag": None, "status": "waiting",
                                                          "waits_for": task["waits_for"]}]})
        self.kill(self.head)
        self.assertEqual(self.data("/api/cluster"), {"address": None, "nodes": [], "readings": {}})

    def test_gpus_are_measured_by_the_driver(self):
        self.lead_with_gpus()
        self.open_page()
        self.log_in()
        self.until("readings", lambda: self.data("/api/cluster")["readings"])
        cluster = self.data("/api/cluster")
        self.assertEqual([gpu["uuid"] for gpu in cluster["nodes"][1]["gpus"]], ["GPU-a", "GPU-b"])
        self.assertEqual(cluster["readings"], {
            "GPU-a": {"utilisation": 87, "memory_used": 1 << 30, "memory": 80 << 30, "temperature": 51, "power": 402.13},
            "GPU-b": {"utilisation": None, "memory_used": 0, "memory": 80 << 30, "temperature": None, "power": None}})

    def test_costs_are_those_of_the_verb(self):
        self.flow("run", "mixed.lua", "--name", "unpriced", "--quiet")
        self.open_page()
        self.log_in()
        unpriced = self.data("/api/runs/unpriced/cost")
        self.assertIsNone(unpriced["cost"]["currency"])
        self.assertEqual(unpriced["cost"], self.good("cost", "unpriced", "--json").lines()[0])
        self.write("flow.toml", PRICES)
        self.flow("run", "mixed.lua", "--name", "priced", "--budget", "50 USD", "--fresh", "--quiet")
        for run in ("unpriced", "priced"):
            for by in ("task", "user", "queue", "gpu"):
                answer = self.data("/api/runs/%s/cost" % run, by=by)
                self.assertEqual(answer["cost"], self.good("cost", run, "--by", by, "--json").lines()[0], "by the prices of the folder")
                self.assertEqual((answer["run"]["name"], answer["rows"]), (run, len(answer["cost"]["rows"])))
        self.assertEqual(answer["run"]["budget"], self.show("priced")["budget"])
        self.assertEqual(self.data("/api/cost", since_s=3600, by="user")["cost"], self.good("cost", "--since", "1h", "--by", "user", "--json").lines()[0])
        self.assertEqual(self.data("/api/cost", since_s=0)["cost"]["runs"], [])
        status, _, body = self.ask("/api/runs/priced/cost?by=colour")
        self.assertEqual(status, 404)
        self.assertIn("colour", body)
        self.write("flow.toml", "[prices]\ncpu_hour = 1\n")
        self.assertIn("flow.toml", self.ask("/api/runs/unpriced/cost")[2])

    def test_earlier_attempts_are_those_of_the_trace(self):
        self.flow("run", "mixed.lua", "--name", "nightly", "--quiet")
        self.flow("retry", "nightly", "load", "--quiet")
        self.open_page()
        self.log_in()
        wanted = self.earlier_attempts("nightly")
        self.assertLessEqual({("work[3]", 1), ("load", 1)}, set(wanted))
        answer = self.data("/api/runs/nightly/attempts")
        found = {(each["task"], each["attempt"]): each for each in answer["attempts"]}
        self.assertEqual((set(found), answer["total"]), (set(wanted), len(wanted)))
        for key, each in found.items():
            args = wanted[key]["args"]
            self.assertEqual((each["outcome"], each["cause"], each["worker"]), (args["outcome"], args.get("cause"), args["worker"]))
            self.assertEqual((each["started"] * 1000, (each["finished"] - each["started"]) * 1000), (wanted[key]["ts"], wanted[key]["dur"]))
        self.assertEqual([each["started"] for each in answer["attempts"]], sorted(each["started"] for each in answer["attempts"]))
        one = self.data("/api/runs/nightly/attempts", task="work[3]")
        self.assertEqual(one["attempts"], [each for each in answer["attempts"] if each["task"] == "work[3]"])
        last = self.data("/api/runs/nightly/attempts", limit=1)
        self.assertEqual((last["total"], last["attempts"]), (len(wanted), answer["attempts"][-1:]))
        self.assertEqual(self.ask("/api/runs/nightly/attempts?task=nothing")[0], 404)

    def test_what_is_in_a_result(self):
        png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        self.write("shapes.lua", SHAPES.replace("PNG", png))
        self.good("run", "shapes.lua", "--quiet")
        self.open_page()
        self.log_in()
        (tensor,) = self.data("/api/runs/last/values", task="numbers")["parts"]
        self.assertEqual({name: tensor[name] for name in ("path", "dtype", "shape", "min", "max", "mean", "not_finite", "bytes")},
                         {"path": "w", "dtype": "i64", "shape": [2, 3], "min": 1, "max": 9, "mean": 4, "not_finite": 0, "bytes": 48})
        parts = {part["path"]: part for part in self.data("/api/runs/last/values", task="files")["parts"]}
        self.assertEqual({path: part["media"] for path, part in parts.items()}, {"picture": "image/png", "text": "text/plain", "page": "text/plain"})
        self.assertEqual(parts["text"]["text"], "a <b>note</b>\n")
        path = "/api/runs/last/picture?task=files&digest="
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        self.addCleanup(connection.close)
        connection.request("GET", path + parts["picture"]["digest"], headers={"Cookie": self.cookie})
        answer = connection.getresponse()
        self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, "image/png"))
        self.assertEqual(base64.b64encode(answer.read()).decode(), png)
        # What may hold a script is never sent as a picture, nor is a file of another task.
        self.assertEqual(self.ask(path + parts["page"]["digest"])[0], 404)
        self.assertEqual(self.ask("/api/runs/last/picture?task=numbers&digest=" + parts["picture"]["digest"])[0], 404)

    def test_only_changed_tasks_are_sent(self):
        self.flow("run", "mixed.lua", "--name", "nightly", "--quiet")
        run = self.show("nightly")
        self.open_page()
        self.log_in()
        path = "/api/runs/%s/tasks" % run["run"]
        whole = self.data(path)
        self.assertEqual([row[1] for row in whole["rows"]], [task["name"] for task in run["tasks"]])
        self.assertEqual([row[3] for row in whole["rows"]], [task["status"] for task in run["tasks"]])
        self.assertEqual((whole["total"], whole["user"]), (len(run["tasks"]), self.user()))
        self.assertEqual(whole["run"], {name: value for name, value in run.items() if name not in ("tasks", "usage")})
        again = self.data(path, table=whole["table"], since=whole["sequence"])
        self.assertEqual((again["rows"], again["run"]), ([], None))
        self.assertEqual(self.data(path, table=whole["table"] + 1, since=whole["sequence"])["rows"], whole["rows"])

    # ---- its start and its end

    def test_beyond_loopback_it_needs_tls_and_keys(self):
        options = self.certificate()
        for missing in ([], options[:4], options[4:]):
            self.exits(2, self.flow("ui", "--listen", "0.0.0.0:0", *missing), "--tls-cert", "--keys")
        self.exits(2, self.flow("ui", "--tls-cert", self.path("cert.pem")), "--tls-key")
        self.exits(2, self.flow("ui", "--keys", self.path("none")), "none")
        self.exits(2, self.flow("ui", "--token-name", "two words"), "two words")
        self.flow("run", "mixed.lua", "--quiet")
        self.open_page("--listen", "0.0.0.0:0", *options)
        self.assertTrue(self.address.startswith("https://"), self.address)
        self.host = "127.0.0.1"
        own = "https://%s:%d" % (self.host, self.port)
        status, _, body = self.ask("/")
        self.assertEqual(status, 200)
        self.assertIn("/assets/sign-in.js", body)
        self.assertEqual(self.ask("/assets/sign-in.js")[0], 200)
        self.assertEqual(self.ask("/api/runs")[0], 401)
        self.assertEqual(self.ask("/sign-in", "POST", Origin=own, X_Flow_Key="first-key")[0], 403)
        self.assertEqual(self.ask("/sign-in", "POST", X_Flow_Key="second-key-of-the-page")[0], 403, "no origin")
        self.assertEqual(self.ask("/sign-in", "POST", Origin="http://" + own[8:], X_Flow_Key="second-key-of-the-page")[0], 403, "not encrypted")
        status, headers, _ = self.ask("/sign-in", "POST", Origin=own, X_Flow_Key="second-key-of-the-page")
        self.assertEqual(status, 200)
        self.assertIn("; Secure", headers["Set-Cookie"])
        self.assertEqual(self.ask("/api/runs", Authorization="Bearer first-key-of-the-page")[0], 200)
        self.assertEqual(self.ask("/api/runs", Authorization="Bearer first-key")[0], 401)
        self.cookie = headers["Set-Cookie"].split(";")[0]
        self.assertEqual(len(self.data("/api/runs")["runs"]), 1)
        self.assertIn("/assets/app.js", self.ask("/")[2])

    def test_an_action_names_the_key_by_which_it_came(self):
        self.write("asks.lua", ASKS)
        first, second = "first-key-of-the-page", "second-key-of-the-page"
        options = self.certificate()
        process = self.start("run", "asks.lua", "--name", "asked")
        self.until_waits("ask", "asked")
        self.open_page("--token-name", "team", *options)
        by_link = self.log_in().split(";")[0]

        def enter(key):
            self.cookie = None
            status, headers, _ = self.ask("/sign-in", "POST", Origin=self.address.rstrip("/"), X_Flow_Key=key)
            self.assertEqual(status, 200)
            return headers["Set-Cookie"].split(";")[0]
        cookies = [by_link, enter(first), enter(second)]
        self.assertEqual(len(set(cookies)), 3, "each has its own")
        self.assertEqual(enter(first), cookies[1])
        wanted = []
        for number, (cookie, key) in enumerate(zip(cookies, (None, first, second))):
            self.cookie = cookie
            self.act("/api/runs/asked/signal", body="1", name="early%d" % number)
            mark = ", key " + hashlib.sha256(key.encode()).hexdigest()[:8] if key else ""
            wanted.append(("early%d" % number, "team@%s (page%s)" % (CLIENT, mark)))
        # A program that sends its key with each request.
        fields = {"Origin": self.address.rstrip("/"), "X_Flow_Token": self.data("/api/session")["token"], "Authorization": "Bearer " + second}
        status, _, body = self.ask("/api/runs/asked/signal?name=last", "POST", cookie=False, body="1", **fields)
        self.assertEqual(status, 200, body)
        wanted.append(("last", wanted[-1][1]))
        self.assertEqual([(each["name"], re.sub(r"@127[.\d]+", "@" + CLIENT, each["by"])) for each in self.show("asked")["actions"]], wanted)
        shown = self.good("show", "asked").out
        self.assertIn(wanted[-1][1].split("(")[1], shown)
        for key in (first, second):
            self.assertNotIn(key, shown + json.dumps(self.show("asked")) + json.dumps(self.data("/api/runs/asked")))
        self.good("cancel", "asked")
        self.exits(1, self.end(process))

    def test_a_head_serves_the_page(self):
        self.lead("--ui", "127.0.0.1:0", "--token-name", "team")
        said = json.loads(self.head.stdout.readline())
        self.link, self.address, self.cookie = said["url"], said["address"], None
        self.host, port = self.address.split("/")[2].split(":")
        self.port = int(port)
        self.log_in()
        self.exits(1, self.flow("run", "mixed.lua", "--name", "nightly", "--quiet"))
        self.assertEqual(self.data("/api/runs")["runs"], [dict(row, result=None) for row in self.runs()])
        self.assertEqual(self.data("/api/session")["writer"], True)
        self.act("/api/runs/nightly/retry", task="load")
        self.until("the retry", lambda: self.tasks("nightly")["load"]["attempts"] == 2)
        self.assertEqual(self.data("/api/session")["who"], "team")
        self.head.send_signal(signal.SIGINT)
        self.exits(0, self.end(self.head))
        self.exits(2, self.flow("head", "--keys", self.path("keys")), "--ui")
        self.exits(2, self.flow("head", "--listen", "127.0.0.1:0", "--ui", "0.0.0.0:0"), "--tls-cert")

    def test_it_ends_by_a_signal_and_with_its_terminal(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = self.open_page()
            self.log_in()
            Events(self).next()  # an open stream does not keep it
            process.send_signal(number)
            self.exits(0, self.end(process))

    def test_it_has_an_address_of_its_own(self):
        # Browsers send the cookie to every server at the address of the page.
        addresses = set()
        for _ in range(2):
            self.open_page()
            addresses.add(self.host)
            self.assertRegex(self.host, r"^127\.\d+\.\d+\.\d+$")
            self.log_in()
            self.assertEqual(self.ask("/api/runs")[0], 200)
        self.assertNotIn("127.0.0.1", addresses)
        self.assertEqual(len(addresses), 2)

    def test_it_listens_on_loopback_only(self):
        for address in ("0.0.0.0:0", "[::]:0", "192.168.0.7:8080", "models.example:80"):
            self.exits(2, self.flow("ui", "--listen", address), address, "loopback", "ssh -L")
        self.exits(2, self.flow("ui", "--listen", "8080"), "127.0.0.1:8080")
        self.open_page("--listen", "localhost:0")
        self.assertEqual(self.address, "http://127.0.0.1:%d/" % self.port)
        self.exits(4, self.flow("ui", "--listen", "127.0.0.1:%d" % self.port), "already in use", "port 0")

    def test_the_link_is_printed(self):
        process = self.start("ui")
        self.assertIn(self.state, process.stdout.readline())
        self.assertRegex(process.stdout.readline(), r"^http://127\.\d+\.\d+\.\d+:\d+/\?token=[\w-]{43}\n$")
        process.terminate()
        self.exits(0, self.end(process))


if __name__ == "__main__":
    main()
