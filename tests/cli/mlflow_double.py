"""A small MLflow tracking server: what `flow export --format mlflow` calls, with MLflow's limits. The real one is in tests/interop."""
import json
import urllib.parse

from http_double import HttpDouble

LIMITS = {"metrics": 1000, "params": 100, "tags": 100}


class MlflowDouble(HttpDouble):
    """`calls`: (method, path, Authorization) of each request. `answers`: statuses of the next ones, before those of the server."""

    def __init__(self, artifact_root="mlflow-artifacts:/0"):
        self.calls, self.answers, self.experiments, self.runs, self.artifacts = [], [], {}, {}, {}
        self.batches = []
        self.artifact_root = artifact_root
        super().__init__()

    def answer(self, handler, body):
        parts = urllib.parse.urlsplit(handler.path)
        self.calls.append((handler.command, parts.path, handler.headers.get("Authorization")))
        if self.answers:
            status, answer = self.answers.pop(0)
        elif parts.path.startswith("/api/2.0/mlflow-artifacts/artifacts/"):
            self.artifacts[urllib.parse.unquote(parts.path.split("/artifacts/", 1)[1])] = body
            status, answer = 200, {}
        else:
            fields = json.loads(body) if body else dict(urllib.parse.parse_qsl(parts.query))
            status, answer = getattr(self, parts.path.replace("/api/2.0/mlflow/", "").replace("/", "_").replace("-", "_"))(fields)
        return status, json.dumps(answer).encode() if not isinstance(answer, bytes) else answer

    def experiments_get_by_name(self, fields):
        name = fields["experiment_name"]
        if name not in self.experiments:
            return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no " + name}
        return 200, {"experiment": {"experiment_id": self.experiments[name], "lifecycle_stage": "active"}}

    def experiments_create(self, fields):
        self.experiments[fields["name"]] = str(len(self.experiments) + 1)
        return 200, {"experiment_id": self.experiments[fields["name"]]}

    def runs_search(self, fields):
        found = [run for run in self.runs.values() if run["info"]["experiment_id"] in fields["experiment_ids"] and
                 fields["filter"] == "tags.`flow.run` = '%s'" % run["tags"]["flow.run"]]
        return 200, {"runs": [{"info": run["info"]} for run in found]} if found else {}

    def runs_create(self, fields):
        id = "r%d" % len(self.runs)
        info = {"run_id": id, "status": "RUNNING", "artifact_uri": "%s/%s/artifacts" % (self.artifact_root, id),
                **{name: fields[name] for name in ("experiment_id", "start_time", "run_name")}}
        self.runs[id] = {"info": info, "params": {}, "metrics": [], "tags": {tag["key"]: tag["value"] for tag in fields["tags"]}}
        return 200, {"run": {"info": info}}

    def runs_log_batch(self, fields):
        run = self.runs[fields.pop("run_id")]
        for kind, items in fields.items():
            self.batches.append((kind, len(items)))
            if len(items) > LIMITS[kind]:
                return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "too many " + kind}
            if kind == "metrics":
                run["metrics"] += items
            else:
                run[kind].update({item["key"]: item["value"] for item in items})
        return 200, {}

    def runs_update(self, fields):
        self.runs[fields["run_id"]]["info"].update(fields)
        return 200, {"run_info": self.runs[fields["run_id"]]["info"]}

    def metrics_get_history(self, fields):
        all = [point for point in self.runs[fields["run_id"]]["metrics"] if point["key"] == fields["metric_key"]]
        begin = int(fields.get("page_token", "0"))
        page = {"metrics": all[begin:begin + 700]}  # several pages
        return 200, dict(page, next_page_token=str(begin + 700)) if begin + 700 < len(all) else page
