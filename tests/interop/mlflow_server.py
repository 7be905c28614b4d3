#!/usr/bin/env python3
"""`flow export --format mlflow` with a real MLflow server, read by MLflow's own client; and event files of `--format tensorboard`, read by
TensorBoard's own reader.

usage: mlflow_server.py --flow BIN --build DIR [TEST...]

The packages are installed from PyPI into a virtual environment below the build folder, 390 MB: of MLflow the part that the server needs, without
libraries for models.
"""
import json
import math
import os
import subprocess
import sys
import time
import urllib.request

from packages import run_tests

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))  # last: a test there has the name of TensorBoard
from place import unused_port  # noqa: E402

PACKAGES = ["mlflow-skinny", "flask", "flask-cors", "graphene", "sqlalchemy", "alembic", "aiohttp", "huey", "numpy", "pandas", "tensorboard"]
IMPORTS = "import mlflow.server, mlflow.server.fastapi_app; from tensorboard.backend.event_processing import event_accumulator"
WAIT_SECONDS_MAX = 240

PIPELINE = r"""
local flow = require "flow"
local train = flow.task("train", function(ctx, n)
  for i = 1, 1200 do ctx:metric("loss", n / i, i) end
  ctx:metric("odd", 0 / 0, 1) ctx:metric("odd", 1 / 0, 2) ctx:metric("odd", -1 / 0, 3)
  return n
end)
local save = flow.shell("save", { args = { "n" }, outputs = { text = "a b.txt", folder = "more" },
  command = [[echo {n} > "a b.txt"; mkdir more; echo 2 > more/two.txt]] })
local held = flow.shell("held", { args = { "path" }, cache = true, command = [[while [ ! -e {path} ]; do sleep 0.05; done]] })
local check = flow.task("check", function(ctx, fails) if fails then error("it is wrong") end return true end)
local params = { note = flow.param.string { default = "" }, fails = flow.param.boolean { default = false }, gate = flow.param.string { default = "/" } }
for i = 1, 130 do params["p" .. i] = flow.param.int { default = i } end
return flow.pipeline("digits", params, function(p)
  local trained = flow.map(train, { 1, 2 })
  return { files = save(trained[1]), trained = trained, ok = check(p.fails):after(held(p.gate)) }
end)
"""


class Place:
    def __init__(self, flow, folder):
        self.program, self.folder = flow, folder
        self.env = dict(os.environ, FLOW_STATE=os.path.join(folder, "state"))
        self.write("pipeline.lua", PIPELINE)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def start(self, *words):
        return subprocess.Popen([self.program, *words], cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def flow(self, *words, code=0):
        process = self.start(*words)
        out, err = process.communicate(timeout=600)
        assert process.returncode == code, (words, process.returncode, out, err)
        return out + err

    def run(self):
        return json.loads(self.flow("show", "last", "--json"))


class Server:
    """The tracking server. It keeps artifacts in a folder, or leaves them to its clients."""

    def __init__(self, folder, *words):
        self.url = "http://127.0.0.1:%d" % unused_port()
        self.log = open(os.path.join(folder, "server.log"), "w+")
        env = dict(os.environ, MLFLOW_DISABLE_TELEMETRY="true", MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", self.url.rsplit(":", 1)[1], "--workers", "1",
             "--backend-store-uri", "sqlite:///" + os.path.join(folder, "mlflow.db"), *words], stdout=self.log, stderr=subprocess.STDOUT, env=env,
            start_new_session=True)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.log.seek(0)
                raise AssertionError("the server does not answer: " + self.log.read()[-3000:])
            time.sleep(0.2)

    def answers(self):
        try:
            return urllib.request.urlopen(self.url + "/health", timeout=10).status == 200
        except OSError:
            return False

    def close(self):
        os.killpg(self.process.pid, 15)
        self.process.wait()
        self.log.close()


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b)) or (math.isinf(a) and abs(b) > 1e308 and a * b > 0)


def ms_of(text):
    import datetime
    return round(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def check_run(place, client, experiment):
    """The only run of the experiment is the last one of flow, with all of its points. Returns it."""
    shown = place.run()
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    (run,) = [each for each in found if each.data.tags["flow.run"] == shown["run"]]
    series = [json.loads(line) for line in place.flow("metrics", "last", "--json").splitlines()]
    assert len(series) == 4, series
    count = 0
    for each in series:
        key = "%s/%s" % (each["task"].replace("[", ".").replace("]", ""), each["metric"])
        history = sorted(client.get_metric_history(run.info.run_id, key), key=lambda point: point.step)
        assert len(history) == len(each["points"]), (key, len(history), len(each["points"]))
        for ours, theirs in zip(each["points"], history):
            value = NUMBERS.get(ours["value"], ours["value"])
            assert (ours["step"], ms_of(ours["time"])) == (theirs.step, theirs.timestamp), (ours, theirs)
            assert same(value, theirs.value), (ours, theirs.value)
            count += 1
    assert {name: json.loads(value) if name != "note" and name != "gate" else value for name, value in run.data.params.items()} == shown["params"]
    assert run.data.tags["flow.status"] == shown["status"]
    assert run.data.tags["mlflow.user"] == shown["tasks"][0]["user"]
    assert run.info.start_time == ms_of(shown["started"])
    assert run.info.end_time == (ms_of(shown["finished"]) if shown["finished"] else None)
    print("%s: %d parameters and %d points, as in flow" % (run.info.status, len(run.data.params), count))
    return run


def contents(folder):
    found = {}
    for at, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(at, name), "rb") as file:
                found[os.path.relpath(file.name, folder)] = file.read()
    return found


def test_mlflow(flow, folder):
    from mlflow import MlflowClient
    place = Place(flow, folder)
    server = Server(folder, "--artifacts-destination", os.path.join(folder, "artifacts"))
    try:
        client = MlflowClient(server.url)

        def export(*words):
            return place.flow("export", "last", "--format", "mlflow", "-o", server.url, *words)
        # While it goes on, and again after its end: one run.
        process = place.start("run", ".", "--param", "gate=" + place.path("gate"), "--param", "note=it's é", "--name", "nightly", "--quiet")
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while "held" not in {task["name"] for task in shown_tasks(place) if task["status"] == "running"}:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.1)
        while {task["status"] for task in shown_tasks(place) if task["name"].startswith("train[")} != {"succeeded"}:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        export()
        run = check_run(place, client, "digits")
        assert run.info.status == "RUNNING", run.info.status
        place.write("gate", "")
        assert process.wait(timeout=600) == 0
        for _ in range(2):
            out = export()
            assert run.info.run_id in out, out
            again = check_run(place, client, "digits")
            assert (again.info.run_id, again.info.status, again.info.run_name) == (run.info.run_id, "FINISHED", "nightly")
        place.flow("get", "last", "-o", "copied")
        got = os.path.join(folder, "got")
        os.makedirs(got)
        client.download_artifacts(run.info.run_id, "", got)
        wanted = contents(os.path.join(folder, "copied"))
        assert contents(got) == wanted and {"a b.txt", "more/two.txt", "result.json"} <= set(wanted), (contents(got), wanted)
        # One that fails, with a text that is too long, in another experiment.
        place.flow("run", ".", "--param", "fails=true", "--param", "note=" + "x" * 7000, "--quiet", code=1)
        assert "6000" in export("--experiment", "other one")
        (failed,) = client.search_runs([client.get_experiment_by_name("other one").experiment_id])
        assert (failed.info.status, len(failed.data.params["note"])) == ("FAILED", 6000)
        assert "it is wrong" in failed.data.tags["flow.error"]
        # One that is deleted there.
        client.delete_experiment(failed.info.experiment_id)
        said = place.flow("export", "last", "--format", "mlflow", "-o", server.url, "--experiment", "other one", code=2)
        assert "among the deleted ones" in said, said
    finally:
        server.close()


def shown_tasks(place):
    process = place.start("show", "last", "--json")
    out, _ = process.communicate(timeout=600)
    return json.loads(out)["tasks"] if process.returncode == 0 else []


def test_without_artifacts(flow, folder):
    from mlflow import MlflowClient
    place = Place(flow, folder)
    server = Server(folder, "--no-serve-artifacts", "--default-artifact-root", os.path.join(folder, "root"))
    try:
        place.flow("run", ".", "--quiet")
        said = place.flow("export", "last", "--format", "mlflow", "-o", server.url)
        assert "the artifacts were not uploaded" in said, said
        check_run(place, MlflowClient(server.url), "digits")
    finally:
        server.close()


def test_tensorboard(flow, folder):
    from tensorboard.backend.event_processing import event_accumulator
    place = Place(flow, folder)
    place.flow("run", ".", "--quiet")
    paths = place.flow("export", "last", "--format", "tensorboard", "-o", "logs").splitlines()
    assert sorted(os.path.dirname(path) for path in paths) == ["logs/train[1]", "logs/train[2]"], paths
    count = 0
    for series in [json.loads(line) for line in place.flow("metrics", "last", "--json").splitlines()]:
        # The reader verifies the checksums. 0: it keeps all points.
        reader = event_accumulator.EventAccumulator(place.path("logs/" + series["task"]), {event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0})
        reader.Reload()
        tags = reader.Tags()
        if series["metric"] in tags["scalars"]:
            read = [(each.step, each.value) for each in reader.Scalars(series["metric"])]
        else:
            from tensorboard.util import tensor_util
            read = [(each.step, float(tensor_util.make_ndarray(each.tensor_proto))) for each in reader.Tensors(series["metric"])]
        assert len(read) == len(series["points"]), (series["metric"], len(read))
        for ours, (step, value) in zip(series["points"], read):
            number = NUMBERS.get(ours["value"], ours["value"])
            assert ours["step"] == step and (same(number, value) or math.isclose(number, value, rel_tol=1e-6)), (ours, step, value)
            count += 1
    print("%d points are read equal, to 32 bits, by task" % count)


TESTS = {"mlflow": test_mlflow, "without_artifacts": test_without_artifacts, "tensorboard": test_tensorboard}


if __name__ == "__main__":
    sys.exit(run_tests(TESTS, "mlflow", PACKAGES, IMPORTS))
