#!/usr/bin/env python3
"""Exports and imports of flow with the programs of others: wfcommons, roc-validator, rocrate and openlineage-python.

usage: exchange.py --flow BIN --build DIR [TEST...]

Each of the workflows in $FLOW_WFFORMAT is imported, run as stand-ins, exported and compared; without that folder, two
made here are. The packages are installed from PyPI into a virtual environment below the build folder. The validator
works without a network: it finds RO-Crate's context in its cache, filled from the package `rocrate`.
"""
import enum
import json
import os
import subprocess
import sys

from packages import run_tests

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from words import PIPELINE, EventRecorder  # noqa: E402

PACKAGES = ["wfcommons", "rocrate", "roc-validator", "openlineage-python"]
IMPORTS = "import wfcommons, rocrate, rocrate_validator, openlineage.client"


def small_workflows():
    """A chain, and a fork with a join, with tasks that have commands and tasks that have none."""
    def task(name, parents, inputs, outputs):
        return {"id": name, "name": name, "parents": parents, "children": [], "inputFiles": inputs, "outputFiles": outputs}
    fork = [task("begin", [], ["in.txt"], ["0.txt"])]
    fork += [task("part%d" % n, ["begin"], ["0.txt"], ["%d.txt" % n]) for n in (1, 2, 3)]
    fork += [task("end", ["part1", "part2", "part3"], ["1.txt", "2.txt", "3.txt"], ["/far/end.txt"])]
    for tasks in ([task("a", [], ["in.txt"], ["a.txt"]), task("b", ["a"], ["a.txt"], [])], fork):
        for parent in tasks:
            parent["children"] = [child["id"] for child in tasks if parent["id"] in child["parents"]]
        files = sorted({file for each in tasks for file in each["inputFiles"] + each["outputFiles"]})
        yield {"name": "small", "schemaVersion": "1.5", "workflow": {
            "specification": {"tasks": tasks, "files": [{"id": file, "sizeInBytes": 10} for file in files]},
            "execution": {"makespanInSeconds": 2, "executedAt": "2026-11-29T10:00:00Z",
                          "tasks": [{"id": each["id"], "runtimeInSeconds": 1} for each in tasks]}}}


class Place:
    def __init__(self, flow, folder):
        self.program, self.folder = flow, folder
        self.env = dict(os.environ, FLOW_STATE=os.path.join(folder, "state"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def flow(self, *words, code=0):
        done = subprocess.run([self.program, *words], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=600)
        assert done.returncode == code, (words, done.returncode, done.stderr)
        return done.stdout

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()


# ---- WfFormat

def graph_of(instance):
    """From wfcommons' reading: {task: (parents, inputs, outputs)}."""
    workflow = instance.workflow
    return {name: (set(workflow.predecessors(name)), [file.file_id for file in task.input_files],
                   [file.file_id for file in task.output_files]) for name, task in workflow.tasks.items()}


def compare_graphs(original, exported):
    """The same tasks and parents, and a one-to-one map of files."""
    assert set(original) == set(exported), set(original) ^ set(exported)
    files = {}
    for name, (parents, inputs, outputs) in original.items():
        parents_now, inputs_now, outputs_now = exported[name]
        assert parents == parents_now, (name, parents ^ parents_now)
        assert len(outputs) == len(outputs_now), (name, outputs, outputs_now)
        last = {os.path.basename(file.rstrip("/")): file for file in outputs_now}
        assert len(last) == len(outputs), (name, outputs_now)
        for file in outputs:
            files[file] = last[os.path.basename(file.rstrip("/"))]
    for name, (_, inputs, _) in original.items():
        inputs_now = exported[name][1]
        assert len(inputs) == len(inputs_now), (name, inputs, inputs_now)
        made = {files[file] for file in inputs if file in files}
        assert made <= set(inputs_now), (name, made - set(inputs_now))
        others = [file for file in inputs if file not in files]
        others_now = [file for file in inputs_now if file not in made]
        for file, now in zip(others, others_now):
            assert files.setdefault(file, now) == now, (name, file, now)
    assert len(set(files.values())) == len(files)


def instance_of(path, schema):
    import pathlib
    from wfcommons.wfinstances.instance import Instance
    return Instance(pathlib.Path(path), schema_file=schema)


def test_wfformat(flow, folder):
    sources = os.environ.get("FLOW_WFFORMAT", "")
    paths = [os.path.join(sources, name) for name in sorted(os.listdir(sources)) if name.endswith(".json")] if os.path.isdir(sources) else []
    schema = os.path.join(folder, "schema.json")
    with open(schema, "w") as file:
        file.write("{}")  # the real one is only on the network; wfcommons checks the rest
    for number, workflow in enumerate(small_workflows()):
        paths.append(os.path.join(folder, "small%d.json" % number))
        with open(paths[-1], "w") as file:
            json.dump(workflow, file)
    for number, path in enumerate(paths):
        place = Place(flow, os.path.join(folder, "w%d" % number))
        os.makedirs(place.folder)
        place.flow("import", path, "-o", "made", "--scale", "0")
        place.flow("run", "made", "--quiet", "--param", "stand_ins=true")
        place.flow("export", "--format", "wfformat", "-o", "run.json")
        original, exported = graph_of(instance_of(path, schema)), graph_of(instance_of(place.path("run.json"), schema))
        compare_graphs(original, exported)
        # What was exported is imported again, to the same graph.
        place.flow("import", "run.json", "-o", "again", "--scale", "0")
        place.flow("run", "again", "--quiet", "--param", "stand_ins=true")
        place.flow("export", "--format", "wfformat", "-o", "again.json")
        compare_graphs(exported, graph_of(instance_of(place.path("again.json"), schema)))
        print("%s: %d tasks, %d edges, the same after import, run and export" %
              (os.path.basename(path), len(original), sum(len(parents) for parents, _, _ in original.values())))


# ---- RO-Crate

CONTEXT = "https://w3id.org/ro/crate/1.1/context"


def seed_cache(cache):
    """Puts RO-Crate's context from the package `rocrate` into the validator's cache, as a server's answer."""
    import importlib.resources
    import io
    import requests
    import urllib3
    from rocrate_validator.utils.http import HttpRequester
    document = json.loads((importlib.resources.files("rocrate") / "data" / "ro-crate.jsonld").read_text())
    # The package has the context of a newer RO-Crate. Since 1.1 the terms of Bioschemas have moved.
    newer = "https://bioschemas.org/terms/"
    terms = {term: each.replace(newer, "https://bioschemas.org/") if isinstance(each, str) else each
             for term, each in document["@context"].items()}
    terms.update({term: "https://bioschemas.org/ComputationalWorkflow#" + term for term in ("input", "output")})
    body = json.dumps({"@context": terms}).encode()

    class Package(requests.adapters.HTTPAdapter):
        def send(self, request, **_):
            raw = urllib3.HTTPResponse(body=io.BytesIO(body), status=200, preload_content=False, request_method="GET",
                                       request_url=request.url, headers={"Content-Type": "application/ld+json"})
            return self.build_response(request, raw)
    requester = HttpRequester.initialize_cache(cache_path=cache)
    requester.session.mount(CONTEXT, Package())
    assert requester.get(CONTEXT).json()["@context"]


def issues_of(folder, cache):
    from rocrate_validator import models, services
    settings = services.ValidationSettings(
        rocrate_uri=folder, profile_identifier="provenance-run-crate-0.5", requirement_severity=models.Severity.REQUIRED,
        offline=True, cache_path=cache)
    result = services.validate(settings)
    return ["%s: %s" % (issue.check.identifier, issue.message) for issue in result.get_issues()]


def test_ro_crate(flow, folder):
    from rocrate.rocrate import ROCrate
    place = Place(flow, folder)
    cache = place.path("cache")
    seed_cache(cache)
    place.write("pipeline.lua", PIPELINE)
    for name, text, code in (("good", "one\ntwo words\n", 0), ("bad", "one\nbad\n", 1)):
        place.write("text.txt", text)
        place.flow("run", ".", "--param", "text=text.txt", "--quiet", code=code)
        place.flow("export", "--format", "ro-crate", "-o", name)
        problems = issues_of(place.path(name), cache)
        assert not problems, "\n".join(problems)
        crate = ROCrate(place.path(name))
        assert crate.mainEntity.id == "workflow/pipeline.lua", crate.mainEntity
        actions = {each.id: each for each in crate.get_by_type("CreateAction")}
        statuses = [each["actionStatus"].rsplit("/", 1)[1] for id, each in actions.items() if id.startswith("#run/")]
        assert statuses == ["FailedActionStatus" if code else "CompletedActionStatus"], statuses
    # The validator finds a fault that is put in.
    path = os.path.join(place.path("good"), "ro-crate-metadata.json")
    metadata = json.loads(place.read(path))
    metadata["@graph"] = [each for each in metadata["@graph"] if not each["@id"].startswith("#organize/")]
    for each in metadata["@graph"]:
        if each["@type"] == "ControlAction":
            del each["instrument"]
    place.write(path, json.dumps(metadata))
    assert issues_of(place.path("good"), cache)
    print("both crates are valid, and one with a fault is not")


# ---- OpenLineage

def test_openlineage(flow, folder):
    from openlineage.client import OpenLineageClient, event_v2
    from openlineage.client.generated import error_message_run, parent_run, source_code_job, dataset_version_dataset, job_type_job
    from openlineage.client.transport.http import HttpConfig, HttpTransport
    facets = {"parent": parent_run.ParentRunFacet, "errorMessage": error_message_run.ErrorMessageRunFacet,
              "sourceCode": source_code_job.SourceCodeJobFacet, "jobType": job_type_job.JobTypeJobFacet,
              "version": dataset_version_dataset.DatasetVersionDatasetFacet}

    types = next(each for each in vars(event_v2).values()
                 if isinstance(each, enum.EnumMeta) and "START" in each.__members__)

    def facets_of(found):
        built = {}
        for name, value in found.items():
            assert value["_producer"] and value["_schemaURL"].startswith("https://"), value
            if name in facets:
                fields = {key: each for key, each in value.items() if not key.startswith("_")}
                if name == "parent":
                    fields = {"run": parent_run.Run(**fields["run"]), "job": parent_run.Job(**fields["job"])}
                built[name] = facets[name](**fields)
        return built

    def event_of(fields):
        def datasets(kind, found):
            return [kind(namespace=each["namespace"], name=each["name"], facets=facets_of(each["facets"])) for each in found]
        return event_v2.RunEvent(
            eventTime=fields["eventTime"], producer=fields["producer"], eventType=types[fields["eventType"]],
            run=event_v2.Run(runId=fields["run"]["runId"], facets=facets_of(fields["run"]["facets"])),
            job=event_v2.Job(namespace=fields["job"]["namespace"], name=fields["job"]["name"], facets=facets_of(fields["job"]["facets"])),
            inputs=datasets(event_v2.InputDataset, fields["inputs"]), outputs=datasets(event_v2.OutputDataset, fields["outputs"]))

    server = EventRecorder()
    url, seen = server.url, server.seen
    client = OpenLineageClient(transport=HttpTransport(HttpConfig(url=url)))
    place = Place(flow, folder)
    place.write("pipeline.lua", PIPELINE)
    for text, code in (("one\ntwo words\n", 0), ("one\nbad\n", 1)):
        place.write("text.txt", text)
        place.flow("run", ".", "--param", "text=text.txt", "--quiet", code=code)
        del seen[:]
        place.flow("export", "--format", "openlineage", "-o", url)
        posted = list(seen)
        assert len(posted) >= 8 and {path for path, _, _ in posted} == {"/api/v1/lineage"}, posted
        posted_types = [event["eventType"] for _, _, event in posted]
        assert posted_types[0] == "START" and posted_types[-1] == ("FAIL" if code else "COMPLETE"), posted_types
        assert posted_types.count("START") == len(posted) / 2, posted_types
        # The library builds its own event from each of ours, and sends the same core.
        del seen[:]
        for _, _, event in posted:
            client.emit(event_of(event))
        for (_, _, ours), (path, _, theirs) in zip(posted, seen):
            assert path == "/api/v1/lineage"
            for name in ("eventType", "eventTime", "producer"):
                assert ours[name] == theirs[name], (name, ours, theirs)
            assert (ours["run"]["runId"], ours["job"]["name"]) == (theirs["run"]["runId"], theirs["job"]["name"])
            for side in ("inputs", "outputs"):
                assert [each["name"] for each in ours[side]] == [each["name"] for each in theirs[side]]
                for each, their in zip(ours[side], theirs[side]):
                    assert each["facets"]["version"]["datasetVersion"] == their["facets"]["version"]["datasetVersion"]
        assert len(seen) == len(posted)
    server.close()
    print("events of a run that succeeded and of one that failed are read by the library")


TESTS = {"wfformat": test_wfformat, "ro_crate": test_ro_crate, "openlineage": test_openlineage}


if __name__ == "__main__":
    sys.exit(run_tests(TESTS, "exchange", PACKAGES, IMPORTS))
