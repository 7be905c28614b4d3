#!/usr/bin/env python3
"""`flow export --format mlflow` and `tensorboard`: what is sent, within the limits, and what fails. tests/interop/mlflow_server.py does the same
with the real server.

usage: mlflow_exports.py --flow BIN [TEST...]
"""
import base64
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from mlflow_double import MlflowDouble  # noqa: E402
from place import HOLD, Place, main, unused_port  # noqa: E402

SCRIPT = r'''
local flow = require "flow"
local train = flow.task("train", function(ctx, n)
  for i = 1, 1500 do ctx:metric("loss", n / i, i) end
  ctx:metric("odd name/%", 0 / 0, -1)
  return n
end)
local save = flow.shell("save", { args = { "n" }, outputs = { text = "a b.txt" }, command = [[echo {n} > "a b.txt"]] })
return flow.pipeline("digits", { lr = flow.param.number { default = 0.5 }, note = flow.param.string { default = "" } }, function(p)
  local trained = flow.map(train, { 1, 2 })
  return { text = save(trained[1]).text, trained = trained }
end)
'''


class Mlflow(Place):
    def setUp(self):
        super().setUp()
        self.write("pipeline.lua", SCRIPT)
        self.double = MlflowDouble()
        self.addCleanup(self.double.close)

    def export(self, *words, **env):
        return self.flow("export", "last", "--format", "mlflow", "-o", self.double.url, *words, **env)

    def points(self):
        (run,) = self.double.runs.values()
        return sorted((point["key"], point["step"], str(point["value"]), point["timestamp"]) for point in run["metrics"])

    def wanted_points(self):
        names = {"train[1]": "train.1", "train[2]": "train.2"}
        return sorted(("%s/%s" % (names[series["task"]], series["metric"].replace("%", "_")), point["step"],
                       "NaN" if point["value"] is None or point["value"] == "NaN" else str(point["value"]), ms_of(point["time"]))
                      for series in self.good("metrics", "last", "--json").lines() for point in series["points"])

    def test_a_run_has_parameters_metrics_tags_and_artifacts(self):
        self.good("run", ".", "--param", "note=it's é", "--name", "nightly", "--quiet")
        shown = self.show()
        done = self.exits(0, self.export())
        self.assertEqual(done.out, "%s/#/experiments/1/runs/r0\n" % self.double.url)
        self.assertEqual((self.double.experiments, list(self.double.runs)), ({"digits": "1"}, ["r0"]))
        run = self.double.runs["r0"]
        self.assertEqual(run["params"], {"lr": "0.5", "note": "it's é"})
        self.assertEqual(self.points(), self.wanted_points())
        self.assertEqual(len(run["metrics"]), 3002)
        info, tags = run["info"], run["tags"]
        self.assertEqual((info["run_name"], info["status"], info["start_time"], info["end_time"]),
                         ("nightly", "FINISHED", ms_of(shown["started"]), ms_of(shown["finished"])))
        self.assertEqual({name: tags[name] for name in ("flow.run", "flow.name", "flow.pipeline", "flow.status", "mlflow.source.name")},
                         {"flow.run": shown["run"], "flow.name": "nightly", "flow.pipeline": "digits", "flow.status": "succeeded",
                          "mlflow.source.name": self.path("pipeline.lua")})
        self.assertEqual(tags["mlflow.user"], shown["tasks"][0]["user"])
        self.good("get", "last", "-o", "out")
        copied = {}
        for at, _, names in os.walk(self.path("out")):
            for name in names:
                with open(os.path.join(at, name), "rb") as file:
                    copied[os.path.relpath(file.name, self.path("out"))] = file.read()
        self.assertIn("a b.txt", copied)
        self.assertEqual(self.double.artifacts, {"0/r0/artifacts/" + name: content for name, content in copied.items()})

    def test_a_second_export_updates_the_run(self):
        self.write("hold.lua", HOLD + r"""
local talk = flow.task("talk", function(ctx) ctx:metric("loss", 1, 1) return 1 end)
return flow.pipeline("h", {}, function() return { talk(), hold("%s", "h"):after(talk()) } end)
""" % self.path("gate"))
        process = self.start("run", "hold.lua")
        self.until_holds("h")
        self.exits(0, self.export())
        run = self.double.runs["r0"]
        self.assertEqual((run["info"]["status"], "end_time" in run["info"], run["tags"]["flow.status"]), ("RUNNING", False, "running"))
        self.open("gate")
        self.exits(0, self.end(process))
        before = self.points()
        self.exits(0, self.export())
        self.exits(0, self.export())
        self.assertEqual(list(self.double.runs), ["r0"])
        self.assertEqual((run["info"]["status"], run["tags"]["flow.status"]), ("FINISHED", "succeeded"))
        self.assertEqual(self.points(), before)
        self.exits(0, self.export("--experiment", "other"))
        self.assertEqual(sorted(self.double.experiments), ["h", "other"])
        self.assertEqual(len(self.double.runs), 2)

    def test_points_are_not_sent_again(self):
        self.good("run", ".", "--quiet")
        self.exits(0, self.export())
        points = self.points()
        self.exits(0, self.export())
        self.assertEqual(self.points(), points)

    def test_the_limits_of_the_api_hold(self):
        params = ", ".join("p%d = flow.param.string { default = \"x\" }" % number for number in range(230))
        self.write("many.lua", 'local flow = require "flow"\nreturn flow.pipeline("many", { long = flow.param.string {}, %s }, function(p) return 1 end)' % params)
        self.good("run", "many.lua", "--param", "long=" + "é" * 4000, "--quiet")
        done = self.exits(0, self.export())
        self.assertIn("the parameter `long` has 8000 bytes, and MLflow takes 6000", done.err)
        self.assertEqual(self.double.runs["r0"]["params"]["long"], "é" * 3000)
        self.assertEqual([batch for batch in self.double.batches if batch[0] == "params"], [("params", 100), ("params", 100), ("params", 31)])
        self.assertEqual(len(self.double.runs["r0"]["params"]), 231)

    def test_a_failed_run_says_why(self):
        self.write("bad.lua", 'local flow = require "flow"\nlocal bad = flow.task("bad", function() error("it broke") end)\n'
                              'return flow.pipeline("bad", {}, function() return bad() end)')
        self.exits(1, self.flow("run", "bad.lua", "--quiet"))
        self.exits(0, self.export())
        run = self.double.runs["r0"]
        self.assertEqual(run["info"]["status"], "FAILED")
        self.assertIn("it broke", run["tags"]["flow.error"])
        self.assertEqual(self.double.artifacts, {})

    def test_the_server_is_asked_as_its_own_clients_do(self):
        self.good("run", ".", "--quiet")
        self.exits(0, self.flow("export", "--format", "mlflow", MLFLOW_TRACKING_URI=self.double.url + "/", MLFLOW_TRACKING_TOKEN="t1"))
        self.assertEqual({key for _, _, key in self.double.calls}, {"Bearer t1"})
        del self.double.calls[:]
        self.exits(0, self.export(MLFLOW_TRACKING_USERNAME="ann", MLFLOW_TRACKING_PASSWORD="p:w"))
        self.assertEqual({key for _, _, key in self.double.calls}, {"Basic " + base64.b64encode(b"ann:p:w").decode()})
        self.double.answers = [(503, {})]
        self.exits(0, self.export())

    def test_errors_say_what_to_do(self):
        self.good("run", ".", "--quiet")
        refused = {"error_code": "PERMISSION_DENIED", "message": "not you"}
        self.double.answers = [(403, refused)]
        self.exits(4, self.export(), self.double.url, "experiments/get-by-name", "403", "PERMISSION_DENIED: not you", "MLFLOW_TRACKING_TOKEN")
        self.double.answers = [(404, b"<html>")]
        self.exits(4, self.export(), "does not look like an MLflow tracking server")
        self.double.answers = [(200, {"experiment": {"experiment_id": "7", "lifecycle_stage": "deleted"}})]
        self.exits(2, self.export(), "experiment `digits` among the deleted ones", "--experiment")
        self.double.answers = [(200, b"<html>")]
        self.exits(4, self.export(), "not a JSON object")
        nowhere = "http://127.0.0.1:%d" % unused_port()
        self.exits(4, self.flow("export", "--format", "mlflow", "-o", nowhere, FLOW_FETCH_RETRIES="0"), nowhere, "`mlflow server` runs there")
        self.exits(2, self.flow("export", "--format", "mlflow", "-o", "folder"), "`folder` is not the URL of an MLflow tracking server")
        self.exits(2, self.flow("export", "--format", "mlflow", "-o", "s3://bucket/x"), "is not the URL of an MLflow tracking server")
        self.exits(2, self.flow("export", "--format", "mlflow", MLFLOW_TRACKING_URI=""), "needs -o", "MLFLOW_TRACKING_URI")
        self.exits(2, self.flow("export", "--format", "wfformat", "-o", "x.json", "--experiment", "a"), "--experiment is of `--format mlflow` only")

    def test_a_run_is_not_created_twice_by_a_retry(self):
        self.good("run", ".", "--quiet")
        # The search answers, and the creation fails.
        self.double.answers = [(200, {"experiment": {"experiment_id": "1", "lifecycle_stage": "active"}}), (200, {}), (503, {})]
        self.exits(4, self.export(), "runs/create", "503")
        self.assertEqual([path for method, path, _ in self.double.calls if path.endswith("runs/create")], ["/api/2.0/mlflow/runs/create"])

    def test_a_server_that_takes_no_artifacts_gets_the_rest(self):
        self.double.artifact_root = "s3://bucket/runs"
        self.good("run", ".", "--quiet")
        self.exits(0, self.export(), "the artifacts were not uploaded", "s3://bucket/runs/r0/artifacts", "--serve-artifacts")
        self.assertEqual(self.double.artifacts, {})
        self.assertEqual(self.double.runs["r0"]["info"]["status"], "FINISHED")

    def test_tensorboard_is_that_of_metrics(self):
        self.good("run", ".", "--quiet")
        self.good("metrics", "last", "--tensorboard", "one")
        paths = self.good("export", "last", "--format", "tensorboard", "-o", "two").out.splitlines()
        self.assertEqual(len(paths), 2)
        for path in paths:
            with open(self.path(path), "rb") as ours, open(self.path(path.replace("two", "one", 1)), "rb") as theirs:
                self.assertEqual(ours.read(), theirs.read())
        self.assertEqual(self.good("export", "last", "--format", "tensorboard", "-o", "two").out.splitlines(), paths)
        self.exits(2, self.flow("export", "last", "--format", "tensorboard", "-o", "http://127.0.0.1/x"), "only the formats openlineage and mlflow")


def ms_of(text):
    import datetime
    return round(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


if __name__ == "__main__":
    main()
