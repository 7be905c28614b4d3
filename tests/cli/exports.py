#!/usr/bin/env python3
"""`flow export` and `flow import`: what a run looks like in other formats, and pipelines from workflows.

tests/interop/exchange.py reads the same with the programs of others.

usage: exports.py --flow BIN [TEST...]
"""
import hashlib
import json
import os
import socket
import stat
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, Place, main  # noqa: E402
from words import PIPELINE, EventRecorder  # noqa: E402

# A file that is passed on, a map over a map, a branch, and a dynamic task that passes its input to its calls.
GRAPH = r"""
local flow = require "flow"
local make = flow.shell("make", { args = { "name" }, outputs = { file = "{name}.txt" }, command = [[echo {name} > {outputs.file}]] })
local pass = flow.task("pass", function(ctx, file) return { same = file } end)
local copy = flow.shell("copy", { args = { "file", "stdout" }, outputs = { copied = "copy.txt" }, command = [[cp {file} {outputs.copied}]] })
local read = flow.shell("read", { args = { "file" }, command = [[cat {file}]] })
local is_long = flow.task("is_long", function(ctx, text) return #text > 1 end)
local many = flow.dynamic("many", function(ctx, file) return { read(file), read(file) } end)
local last = flow.task("last", function(ctx, a, b) return "end" end)
return flow.pipeline("graph", {}, function()
  local made = flow.map(make, { "a", "b" })
  local copies = flow.map(copy, made)
  local first = pass(made[1].file)
  local text = read(copies[2].copied)
  local chosen = flow.when(is_long(text.stdout), function() return read(copy(first.same, "").copied) end, function() return make("c") end)
  return last(chosen, many(first.same))
end)
"""

WORKFLOW = {
    "name": "small", "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {"id": "late", "name": "late", "parents": ["sort", "first"], "inputFiles": ["sorted.txt"], "outputFiles": ["/x/late.txt"]},
                {"id": "first", "name": "first", "parents": [], "children": ["sort", "late"], "inputFiles": ["in.txt"], "outputFiles": ["words.txt"]},
                {"id": "sort", "name": "sort", "parents": ["first"], "inputFiles": ["words.txt"], "outputFiles": ["sorted.txt"]},
            ],
            "files": [{"id": "in.txt", "sizeInBytes": 5}]},
        "execution": {
            "makespanInSeconds": 3, "executedAt": "2026-11-29T10:00:00Z",
            "tasks": [
                {"id": "first", "runtimeInSeconds": 1, "coreCount": 1,
                 "command": {"program": "tr", "arguments": ["' '", "'\\n'", "<", "in.txt", ">", "words.txt"]}},
                {"id": "sort", "runtimeInSeconds": 1, "command": {"program": "sort words.txt > sorted.txt"}},
                {"id": "late", "runtimeInSeconds": 0.5}]}}}


class Exports(Place):
    def setUp(self):
        super().setUp()
        self.write("pipeline.lua", PIPELINE)
        self.write("text.txt", "one\ntwo words\n")

    def run_words(self, code=0):
        self.exits(code, self.flow("run", ".", "--param", "text=text.txt", "--quiet"))

    def export(self, format, target, *words):
        return self.good("export", "last", "--format", format, "-o", target, *words)

    def json(self, path):
        return json.loads(self.read(path))

    def files_below(self, folder):
        return sorted(os.path.relpath(os.path.join(at, name), self.path(folder))
                      for at, _, names in os.walk(self.path(folder)) for name in names)

    # ---- WfFormat

    def test_wfformat_has_tasks_edges_and_files(self):
        self.run_words()
        self.assertEqual(self.export("wfformat", "run.json").out, "run.json\n")
        workflow = self.json("run.json")
        self.assertEqual((workflow["schemaVersion"], workflow["name"]), ("1.5", "words"))
        tasks = {task["id"]: task for task in workflow["workflow"]["specification"]["tasks"]}
        edges = {(parent, name) for name, task in tasks.items() for parent in task["parents"]}
        self.assertEqual(edges, {("split", "count[1]"), ("split", "count[2]"), ("split", "join"), ("join", "note")})
        self.assertEqual(edges, {(name, child) for name, task in tasks.items() for child in task["children"]})
        self.assertEqual(tasks["split"]["inputFiles"], ["/inputs/text.txt"])
        self.assertEqual(tasks["split"]["outputFiles"], ["/split/part.aa", "/split/part.ab"])
        self.assertEqual(tasks["count[2]"]["inputFiles"], ["/split/part.ab"])
        self.assertEqual(tasks["count[2]"]["name"], "count")
        self.assertEqual(tasks["join"]["inputFiles"], ["/split/part.aa", "/split/part.ab"])
        sizes = {file["id"]: file["sizeInBytes"] for file in workflow["workflow"]["specification"]["files"]}
        self.assertEqual(sizes, {"/inputs/text.txt": 14, "/split/part.aa": 4, "/split/part.ab": 10, "/join/all.txt": 14, "/join/more": 2})
        ran = {task["id"]: task for task in workflow["workflow"]["execution"]["tasks"]}
        self.assertEqual(set(ran), set(tasks))
        self.assertEqual(ran["join"]["command"], {"program": "cat part.aa part.ab > all.txt; mkdir more; echo 1 > more/one.txt", "arguments": []})
        self.assertNotIn("command", ran["count[1]"])
        self.assertEqual(ran["join"]["coreCount"], 1)
        self.assertEqual(ran["join"]["machines"], ["local"])
        self.assertEqual([machine["nodeName"] for machine in workflow["workflow"]["execution"]["machines"]], ["local"])

    def test_edges_and_files_are_followed_through_maps_branches_and_dynamic_tasks(self):
        self.write("graph.lua", GRAPH)
        self.good("run", "graph.lua")
        self.export("wfformat", "run.json")
        tasks = {task["id"]: task for task in self.json("run.json")["workflow"]["specification"]["tasks"]}
        edges = {name: set(task["parents"]) for name, task in tasks.items()}
        calls = {name for name in tasks if name.startswith("many/")}
        self.assertEqual(len(calls), 2)
        self.assertEqual({name: parents for name, parents in edges.items() if name not in calls}, {
            "make[1]": set(), "make[2]": set(), "copy[1]": {"make[1]"}, "copy[2]": {"make[2]"}, "pass": {"make[1]"}, "read": {"copy[2]"},
            "is_long": {"read"}, "copy#2": {"pass", "is_long"}, "read#2": {"copy#2", "is_long"}, "make#2": {"is_long"}, "many": {"pass"},
            "last": {"is_long", "read#2", "many"} | calls})
        # A file belongs to the task that made it, and not to one that passes it on.
        self.assertEqual((tasks["pass"]["inputFiles"], tasks["pass"]["outputFiles"]), (["/make[1]/a.txt"], []))
        self.assertEqual(tasks["copy[2]"]["inputFiles"], ["/make[2]/b.txt"])
        for name in ("copy#2", "many", *calls):
            self.assertEqual(tasks[name]["inputFiles"], ["/make[1]/a.txt"], name)

    def test_a_run_is_exported_while_it_goes_on_and_from_the_cache(self):
        self.write("hold.lua", HOLD + r"""
local first = flow.shell("first", { outputs = { file = "first.txt" }, command = [[echo 1 > {outputs.file}]] })
return flow.pipeline("h", {}, function() return { hold("%s", "h"):after(first {}), first {} } end)
""" % self.path("gate"))
        run = self.start("run", "hold.lua")
        self.until_holds("h")

        def types(path):
            events = [json.loads(line) for line in self.read(path).splitlines()]
            return sorted((event["job"]["name"], event["eventType"]) for event in events)
        self.export("openlineage", "now.ndjson")
        self.assertEqual([each for each in types("now.ndjson") if each[1] != "START"], [("h.first", "COMPLETE")] * 2)
        for format in ("wfformat", "ro-crate"):
            self.export(format, "now-" + format)
        ran = {task["id"] for task in self.json("now-wfformat")["workflow"]["execution"]["tasks"]}
        self.assertNotIn("hold", ran)
        self.assertIn("first", ran)
        self.open("gate")
        self.exits(0, self.end(run))
        self.good("run", "hold.lua")
        self.export("openlineage", "cached.ndjson")
        self.assertEqual(types("cached.ndjson"), sorted([(name, type) for name in ("h", "h.hold", "h.first", "h.first")
                                                         for type in ("START", "COMPLETE")]))
        self.export("ro-crate", "cached")
        graph = {entity["@id"]: entity for entity in self.json("cached/ro-crate-metadata.json")["@graph"]}
        self.assertIn("in the cache", graph["#action/first"]["description"])

    def test_a_file_that_exists_is_replaced_only_with_force(self):
        self.run_words()
        self.write("run.json", "mine")
        for format in ("wfformat", "openlineage", "ro-crate"):
            self.exits(2, self.flow("export", "--format", format, "-o", "run.json"), "`run.json` exists already", "--force")
        self.assertEqual(self.read("run.json"), "mine")
        self.export("wfformat", "run.json", "--force")
        self.assertEqual(self.json("run.json")["name"], "words")
        os.mkdir(self.path("mine"))
        self.write("mine/file", "mine")
        self.exits(2, self.flow("export", "--format", "ro-crate", "-o", "mine", "--force"), "is not an RO-Crate")
        self.assertEqual(self.files_below("mine"), ["file"])

    def test_a_special_file_is_never_replaced(self):
        self.run_words()
        os.mkfifo(self.path("pipe"))
        os.symlink("pipe", self.path("link"))
        os.mkdir(self.path("made"))
        os.mkfifo(self.path("made/pipeline.lua"))
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(self.path("socket"))
        for target, kind in (("pipe", "pipe"), ("link", "pipe"), ("socket", "socket"), ("/dev/null", "device")):
            for words in ((), ("--force",)):
                self.exits(2, self.flow("export", "--format", "wfformat", "-o", target, *words), "`%s` is a %s, which --force does not replace" % (target, kind))
        self.exits(2, self.imported(WORKFLOW, "--force"), "made/pipeline.lua` is a pipe, which --force does not replace")
        self.assertTrue(stat.S_ISFIFO(os.stat(self.path("pipe")).st_mode))
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))

    def test_wrong_lines(self):
        self.exits(2, self.flow("export", "--format", "wfformat", "-o", "x.json"), "there is no run")
        self.run_words()
        for format in ("prov", "ro_crate"):
            self.exits(2, self.flow("export", "--format", format, "-o", "x"), "`ro-crate`, `wfformat`, `openlineage`, `mlflow` or `tensorboard`, not `%s`" % format)
        self.exits(2, self.flow("export", "--format", "wfformat"), "`flow export` needs -o")
        self.exits(2, self.flow("export", "-o", "x"), "`flow export` needs --format")
        self.exits(2, self.flow("import", "x.json"), "`flow import` needs -o")
        self.exits(2, self.flow("export", "--format", "openlineage"), "needs -o", "OPENLINEAGE_URL")
        self.exits(2, self.flow("export", "nobody", "--format", "wfformat", "-o", "x.json"), "nobody")
        self.exits(2, self.flow("export", "--format", "wfformat", "-o", "http://127.0.0.1/x"), "only the formats openlineage and mlflow")
        self.exits(4, self.flow("export", "--format", "wfformat", "-o", "no/such/x.json"), "no/such")

    # ---- RO-Crate

    def test_a_crate_has_code_files_and_actions(self):
        self.run_words()
        self.assertEqual(self.export("ro-crate", "crate").out, "crate/ro-crate-metadata.json\n")
        self.assertEqual(self.files_below("crate"),
                         ["inputs/text.txt", "outputs/join/all.txt", "outputs/join/more/one.txt", "outputs/split/part.aa", "outputs/split/part.ab",
                          "result/result.json", "ro-crate-metadata.json", "workflow/pipeline.lua"])
        graph = {entity["@id"]: entity for entity in self.json("crate/ro-crate-metadata.json")["@graph"]}
        self.assertEqual(len(graph), len(self.json("crate/ro-crate-metadata.json")["@graph"]))
        for name in self.files_below("crate"):
            if name != "ro-crate-metadata.json":
                with open(self.path(os.path.join("crate", name)), "rb") as file:
                    self.assertEqual(graph[name]["sha256"], hashlib.sha256(file.read()).hexdigest())

        def ids(value):
            return [each["@id"] for each in (value if isinstance(value, list) else [value])]
        self.assertEqual(self.read("crate/workflow/pipeline.lua"), PIPELINE)
        self.assertEqual(ids(graph["./"]["mainEntity"]), ["workflow/pipeline.lua"])
        join = graph["#action/join"]
        self.assertEqual((ids(join["object"]), ids(join["result"])),
                         (["outputs/split/part.aa", "outputs/split/part.ab"], ["outputs/join/all.txt", "outputs/join/more/"]))
        self.assertEqual(ids(join["instrument"]), ["#task/join"])
        self.assertIn("count", graph["#task/count"]["description"])
        run = graph["#run/" + self.show()["run"]]
        self.assertEqual(ids(run["object"]), ["#value/names", "inputs/text.txt", "#value/times"])
        self.assertEqual(ids(run["result"]), ["outputs/join/all.txt", "outputs/join/more/", "result/result.json"])
        self.assertEqual(graph["#value/times"]["value"], 2)
        self.assertEqual(graph["#env/split/LC_ALL"]["value"], "C")
        self.assertEqual(len([id for id in graph if id.startswith("#control/")]), 5)
        # An older crate is replaced, and nothing outside of it.
        os.symlink(self.path("text.txt"), self.path("crate/link"))
        os.remove(self.path("crate/result/result.json"))
        os.symlink(self.path("text.txt"), self.path("crate/result/result.json"))
        self.export("ro-crate", "crate", "--force")
        self.assertEqual(self.read("text.txt"), "one\ntwo words\n")
        self.assertFalse(os.path.islink(self.path("crate/result/result.json")))
        os.mkdir(self.path("elsewhere"))
        os.rename(self.path("crate/outputs/join"), self.path("joined"))
        os.symlink(self.path("elsewhere"), self.path("crate/outputs/join"))
        self.exits(2, self.flow("export", "last", "--format", "ro-crate", "-o", "crate", "--force"), "`crate/outputs/join` is a link")
        self.assertEqual(os.listdir(self.path("elsewhere")), [])

    def test_names_do_not_lead_out_of_a_crate(self):
        self.write("odd.lua", r"""
local flow = require "flow"
local odd = flow.shell("odd", { outputs = { files = "*" }, command = [[touch -- '..x' 'a b' '"q' '%41']] })
return flow.pipeline("odd", {}, function() return odd({}).files end)
""")
        self.good("run", "odd.lua")
        self.export("ro-crate", "crate")
        self.assertEqual([name for name in self.files_below("crate") if name.startswith("outputs/")],
                         ["outputs/odd/\"q", "outputs/odd/%41", "outputs/odd/a b"])
        ids = [entity["@id"] for entity in self.json("crate/ro-crate-metadata.json")["@graph"]]
        self.assertIn("outputs/odd/%2541", ids)
        self.assertIn("outputs/odd/a%20b", ids)

    # ---- OpenLineage

    def test_events_of_a_run_and_its_tasks(self):
        self.write("text.txt", "one\nbad\n")
        self.run_words(1)
        self.export("openlineage", "events.ndjson")
        events = [json.loads(line) for line in self.read("events.ndjson").splitlines()]
        self.assertEqual([event["eventTime"] for event in events], sorted(event["eventTime"] for event in events))
        self.assertEqual((events[0]["eventType"], events[0]["job"]["name"]), ("START", "words"))
        self.assertEqual((events[-1]["eventType"], events[-1]["job"]["name"]), ("FAIL", "words"))
        self.assertIn("a bad line", events[-1]["run"]["facets"]["errorMessage"]["message"])
        failed = [event for event in events if event["eventType"] == "FAIL" and event["job"]["name"] == "words.count"]
        self.assertEqual(len(failed), 1)
        self.assertIn("a bad line", failed[0]["run"]["facets"]["errorMessage"]["message"])
        run_id = events[0]["run"]["runId"]
        for event in events[1:-1]:
            self.assertEqual(event["run"]["facets"]["parent"]["run"]["runId"], run_id)
        split = next(event for event in events if event["eventType"] == "COMPLETE" and event["job"]["name"] == "words.split")
        self.assertEqual(split["inputs"][0]["namespace"], "file")
        self.assertEqual(split["inputs"][0]["name"], self.path("text.txt"))
        digest = hashlib.sha256(b"one\nbad\n").hexdigest()
        self.assertEqual(split["inputs"][0]["facets"]["version"]["datasetVersion"], "sha256:" + digest)
        self.assertEqual([output["name"] for output in split["outputs"]], ["words/split/part.aa", "words/split/part.ab"])
        self.assertEqual(split["job"]["facets"]["sourceCode"]["language"], "bash")
        self.assertIn("function(ctx, path)", failed[0]["job"]["facets"]["sourceCode"]["sourceCode"])
        # The same events at each export.
        self.export("openlineage", "again.ndjson")
        self.assertEqual(self.read("again.ndjson"), self.read("events.ndjson"))

    def test_events_are_posted_to_a_server(self):
        self.run_words()
        server = EventRecorder()
        self.addCleanup(server.close)
        server.answers, url = [503], server.url
        self.assertEqual(self.export("openlineage", url).out, url + "\n")
        self.export("openlineage", "events.ndjson")
        events = [json.loads(line) for line in self.read("events.ndjson").splitlines()]
        # The first one was sent again after a failure.
        self.assertEqual([event for _, _, event in server.seen[1:]], events)
        self.assertEqual({(path, key) for path, key, _ in server.seen}, {("/api/v1/lineage", None)})
        del server.seen[:]
        self.exits(0, self.flow("export", "--format", "openlineage", OPENLINEAGE_URL=url + "/my/path", OPENLINEAGE_API_KEY="k1",
                                OPENLINEAGE_NAMESPACE="lab"))
        self.assertEqual({(path, key) for path, key, _ in server.seen}, {("/my/path", "Bearer k1")})
        self.assertEqual({event["job"]["namespace"] for _, _, event in server.seen}, {"lab"})
        server.answers = [422]
        self.exits(4, self.flow("export", "--format", "openlineage", "-o", url), "422", url)

    def test_a_task_that_never_ran_is_in_no_format_an_execution(self):
        self.write("skips.lua", r"""
local flow = require "flow"
local bad = flow.shell("bad", { command = [[exit 3]] })
local fine = flow.shell("fine", { command = [[true]] })
local next = flow.task("next", function(ctx, text) return text end)
return flow.pipeline("skips", {}, function() return { next(bad().stdout), next(fine().stdout) } end)
""")
        self.exits(1, self.flow("run", "skips.lua", "--quiet"))
        tasks = self.tasks()
        self.assertEqual((tasks["next"]["status"], tasks["next"]["attempts"]), ("skipped", 0))
        self.export("openlineage", "events.ndjson")
        events = [json.loads(line) for line in self.read("events.ndjson").splitlines()]
        types = sorted((event["run"]["facets"]["flow_task"]["task"], event["eventType"]) for event in events[1:-1])
        self.assertEqual(types, [("bad", "FAIL"), ("bad", "START"), ("fine", "COMPLETE"), ("fine", "START"),
                                 ("next#2", "COMPLETE"), ("next#2", "START")])
        self.export("wfformat", "run.json")
        workflow = self.json("run.json")["workflow"]
        self.assertEqual({task["id"] for task in workflow["specification"]["tasks"]}, {"bad", "fine", "next", "next#2"})
        self.assertEqual({task["id"] for task in workflow["execution"]["tasks"]}, {"bad", "fine", "next#2"})
        self.export("ro-crate", "crate")
        ids = {entity["@id"] for entity in self.json("crate/ro-crate-metadata.json")["@graph"]}
        self.assertEqual({id for id in ids if id.startswith("#action/")}, {"#action/bad", "#action/fine", "#action/next%232"})

    def test_what_tasks_used_and_who_ran_them_is_exported(self):
        self.write("uses.lua", r"""
local flow = require "flow"
local burn = flow.shell("burn", { outputs = { out = "out.bin" }, command = [[python3 -c 'import time
open("out.bin", "wb").write(b"x" * 3000000)
while time.process_time() < 0.3: pass']] })
return flow.pipeline("uses", {}, function() return burn({}).out end)
""")
        self.good("run", "uses.lua", "--quiet")
        shown = self.tasks()["burn"]
        names = ("peak_memory", "read_bytes", "written_bytes", "cpu_s", "queue_s", "stage_s", "commit_s", "gpu_s", "gpu_used_s", "gpu_measured_s", "gpu_energy_j")
        figures = {name: shown[name] for name in names}
        self.assertGreaterEqual(figures["written_bytes"], 3000000)
        self.export("wfformat", "run.json")
        ran = self.json("run.json")["workflow"]["execution"]["tasks"][0]
        self.assertEqual([ran[name] for name in ("memoryInBytes", "readBytes", "writtenBytes")],
                         [figures[name] for name in ("peak_memory", "read_bytes", "written_bytes")])
        self.assertAlmostEqual(ran["avgCPU"] * ran["runtimeInSeconds"], 100 * figures["cpu_s"], places=3)

        def same(seen, what):
            self.assertEqual(set(seen), set(figures), what)
            for name, value in figures.items():
                self.assertAlmostEqual(seen[name], value, places=5, msg=(what, name))
        self.export("openlineage", "events.ndjson")
        facets = [json.loads(line)["run"]["facets"].get("flow_task", {}) for line in self.read("events.ndjson").splitlines()]
        same({name: facets[2][name] for name in names}, "openlineage")
        self.assertNotIn("cpu_s", facets[1])  # of its START
        self.export("ro-crate", "crate")
        graph = {entity["@id"]: entity for entity in self.json("crate/ro-crate-metadata.json")["@graph"]}
        values = [graph[each["@id"]] for each in graph["#action/burn"]["resourceUsage"]]
        same({value["name"]: value["value"] for value in values}, "ro-crate")
        self.assertEqual({value["propertyID"] for value in values}, {"https://w3id.org/flow#" + name for name in names})
        self.assertEqual(graph[graph["#action/burn"]["agent"]["@id"]]["name"], shown["user"])

    # ---- import

    def imported(self, workflow, *words):
        self.write("w.json", workflow if isinstance(workflow, str) else json.dumps(workflow))
        return self.flow("import", "w.json", "-o", "made", *words)

    def test_a_command_runs_and_a_task_without_one_is_a_stand_in(self):
        done = self.exits(0, self.imported(WORKFLOW, "--scale", "0.01"))
        self.assertIn("wrote made/pipeline.lua\n", done.out)
        self.assertIn("3 tasks: 2 commands, and 1 stand-in without a command\n", done.out)
        self.write("made/inputs/in.txt", "b a c")
        self.good("run", "made")
        self.assertEqual(self.good("logs", "last", "late").out,
                         "a stand-in for the task late: it sleeps 0.005 s and writes files that say what they stand for\n")
        self.export("wfformat", "run.json")
        workflow = self.json("run.json")["workflow"]
        tasks = {task["id"]: task for task in workflow["specification"]["tasks"]}
        self.assertEqual({name: sorted(task["parents"]) for name, task in tasks.items()},
                         {"first": [], "sort": ["first"], "late": ["first", "sort"]})
        self.assertEqual(tasks["late"]["inputFiles"], ["/sort/sorted.txt"])
        commands = {task["id"]: task.get("command", {}).get("program") for task in workflow["execution"]["tasks"]}
        self.assertEqual(commands, {"first": "tr ' ' '\\n' < in.txt > words.txt", "sort": "sort words.txt > sorted.txt", "late": None})
        self.good("get", "last", "-o", "out")
        self.assertIn("This file stands in for late.txt of the task late.", self.read("out/late.txt"))
        # Without commands, and once more from the export.
        self.good("run", "made", "--param", "stand_ins=true", "--param", "scale=0")
        self.assertTrue(self.good("logs", "last", "sort").out.startswith("a stand-in for the task sort: it sleeps 0.000 s"))
        self.good("import", "run.json", "-o", "second")
        self.write("second/inputs/in.txt", "z y")
        self.good("run", "second")
        self.good("export", "--format", "wfformat", "-o", "second.json")
        again = {task["id"]: task for task in self.json("second.json")["workflow"]["specification"]["tasks"]}
        self.assertEqual(again, tasks)

    def test_a_pipeline_is_replaced_only_with_force_and_inputs_never(self):
        self.exits(0, self.imported(WORKFLOW))
        self.write("made/inputs/in.txt", "mine")
        self.exits(2, self.imported(WORKFLOW), "made/pipeline.lua", "--force")
        done = self.exits(0, self.imported(dict(WORKFLOW, name="other"), "--force"))
        self.assertNotIn("new file", done.out)
        self.assertEqual(self.read("made/inputs/in.txt"), "mine")
        self.assertIn('flow.pipeline("other"', self.read("made/pipeline.lua"))

    def test_text_of_a_workflow_is_never_code(self):
        self.write("gate", "")
        evil = "x\" .. os.exit(9) .. \"]]\n]=] $(touch %s) `touch %s` {id} '" % (self.path("hit"), self.path("hit"))
        tasks = [{"id": evil, "name": evil, "parents": [], "inputFiles": ["../../" + evil, "-rf"],
                  "outputFiles": ["/a/" + evil, "../../up.txt", "inputs", "{cpus}", "*", "a/b.txt"]},
                 {"id": "next", "parents": [evil], "inputFiles": ["/a/" + evil, "*", "inputs"], "outputFiles": []}]
        self.exits(0, self.imported({"name": evil, "schemaVersion": "1.5", "workflow": {"specification": {"tasks": tasks}}}))
        self.good("run", "made", "--param", "scale=0")
        self.assertFalse(os.path.exists(self.path("hit")))
        self.assertEqual(self.files_below("made/inputs"), sorted(os.listdir(self.path("made/inputs"))))
        self.assertFalse(os.path.exists(self.path("up.txt")))
        tasks = self.show()["tasks"]
        self.assertEqual([task["status"] for task in tasks], ["succeeded", "succeeded"])
        self.export("wfformat", "run.json")
        self.assertEqual([task["id"] for task in self.json("run.json")["workflow"]["specification"]["tasks"]], [evil, "next"])

    def test_a_large_workflow_has_its_tasks_in_a_file_of_their_own(self):
        tasks = [{"id": "t%04d" % n, "parents": ["t%04d" % (n - 1)] if n % 100 else [],
                  "inputFiles": ["f%04d" % (n - 1)] if n % 100 else [], "outputFiles": ["f%04d" % n]} for n in range(1000)]
        self.exits(0, self.imported({"name": "large", "schemaVersion": "1.5", "workflow": {"specification": {"tasks": tasks}}}))
        self.assertEqual(sorted(os.listdir(self.path("made"))), ["pipeline.lua", "tasks.lua"])
        self.assertLess(len(self.read("made/pipeline.lua")), 5000)
        self.assertIn("1000 nodes", self.good("plan", "made").out)

    def test_a_wrong_workflow_is_explained(self):
        def task(id, **fields):
            return dict({"id": id, "parents": [], "inputFiles": [], "outputFiles": []}, **fields)

        def workflow(*tasks, execution=None):
            body = {"specification": {"tasks": list(tasks)}}
            if execution is not None:
                body["execution"] = {"tasks": execution}
            return {"name": "w", "schemaVersion": "1.5", "workflow": body}
        cases = [
            ("{", "it is not JSON"),
            ("[]", "`schemaVersion` is missing"),
            ({"name": "w"}, "`schemaVersion` is missing"),
            (dict(WORKFLOW, schemaVersion="1.4"), "its `schemaVersion` is `1.4`: flow reads WfFormat 1.5"),
            ({"schemaVersion": "1.5"}, "`workflow` is missing"),
            ({"schemaVersion": "1.5", "workflow": {}}, "workflow: `specification` is missing"),
            (workflow(), "`tasks` is missing or empty"),
            (workflow({"parents": []}), "workflow.specification.tasks[0]: `id` is missing"),
            (workflow(task("a"), task("a")), "another task has the id `a` too"),
            (workflow(task("a", parents=["b"])), "the task `a`: `parents` names `b`, and there is no task with this id"),
            (workflow(task("a", parents="b")), "the task `a`: `parents` is not a list"),
            (workflow(task("a", outputFiles=[1])), "the task `a`: `outputFiles` is not a string"),
            (workflow(task("a", children=["b"]), task("b")), "`children` names `b`, whose `parents` lacks this task"),
            (workflow(task("a", parents=["b"]), task("b", parents=["a"])), "wait for each other: `a` after `b` after `a`"),
            (workflow(task("a", inputFiles=["f"], outputFiles=["f"])), "wait for each other: `a` after `a`"),
            (workflow(task("a", outputFiles=["f"]), task("b", outputFiles=["f"])), "the task `b`: `outputFiles` has `f`, which the task `a`"),
            (workflow(task("a"), execution=[{"id": "b"}]), "workflow.execution.tasks[0]: `id` names `b`"),
            (workflow(task("a"), execution=[{"id": "a"}, {"id": "a"}]), "the task `a` is listed twice"),
            (workflow(task("a"), execution=[{"id": "a", "runtimeInSeconds": -1}]), "`runtimeInSeconds` is -1: expected 0 or more"),
            (workflow(task("a"), execution=[{"id": "a", "command": "ls"}]), "the task `a`: `command` is not an object"),
            (workflow(task("a"), execution=[{"id": "a", "command": {"program": "a\0b"}}]), "has a NUL character"),
        ]
        for value, message in cases:
            with self.subTest(message):
                self.exits(2, self.imported(value), "`w.json` cannot be imported: ", message)
        self.assertFalse(os.path.exists(self.path("made")))
        self.exits(2, self.flow("import", "nothing.json", "-o", "made"), "nothing.json")
        self.exits(2, self.imported(WORKFLOW, "--scale", "-1"), "--scale is `-1`")


if __name__ == "__main__":
    main()
