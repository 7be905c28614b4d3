#!/usr/bin/env python3
"""flow.toml: where it is found, its precedence, each of its options, and what a run keeps of it.

usage: config.py --flow BIN [TEST...]
"""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, Place, main, unused_port  # noqa: E402

HEAD = 'local flow = require "flow"\n'
SAY = 'local say = flow.shell("say", { args = { "x" }, command = [[set +u; echo $MODE {x}]] })\n'


class Config(Place):
    def setUp(self):
        super().setUp()
        os.makedirs(self.path("home", "flow"))

    def script(self, body, head=SAY, name="pipeline.lua"):
        self.write(name, HEAD + head + 'return flow.pipeline("config", {}, function(p)\n%s\nend)\n' % body)

    def toml(self, text, name="flow.toml"):
        self.write(name, text)

    def explained(self, *words, script=".", **env):
        """(task or None, table, option): (value, origin)."""
        lines = self.good("plan", script, "--explain-config", "--json", *words, **env).lines()
        return {(line["task"], line["table"], line["option"]): (line["value"], line["origin"]) for line in lines}

    def of_task(self, option, *words, task="say", **env):
        return self.explained(*words, **env)[(task, "tasks", option)]

    def result(self, *words, **env):
        self.good("run", ".", *words, **env)
        return self.show()["result"]

    # ---- files

    def test_the_file_next_to_the_script_outranks_that_of_the_home_folder(self):
        self.script('return say("1").stdout')
        self.toml('[tasks.say]\ncpus = 2\nmemory = "1MiB"\n', "home/flow/flow.toml")
        self.toml('[tasks.say]\ncpus = 3\n')
        self.assertEqual(self.of_task("cpus"), (3, "flow.toml:2 [tasks.say]"))
        home = self.path("home/flow/flow.toml")
        self.assertEqual(self.of_task("memory"), ("1MiB", home + ":3 [tasks.say]"))
        self.toml('[tasks.say]\ncpus = 4\n', "other.toml")
        named = self.explained(FLOW_CONFIG="other.toml")
        self.assertEqual(named[("say", "tasks", "cpus")], (4, "other.toml:2 [tasks.say]"))
        self.assertEqual(named[("say", "tasks", "memory")], (None, "default"))
        self.exits(2, self.flow("run", ".", FLOW_CONFIG="no.toml"), "no.toml")

    def test_the_file_is_next_to_the_script_and_not_in_the_working_directory(self):
        os.mkdir(self.path("sub"))
        self.script('return say("1").stdout', name="sub/pipeline.lua")
        self.toml('[tasks.say]\nenv.MODE = "there"\nstate = 1\n')
        self.toml('[tasks.say]\nenv.MODE = "here"\n[defaults]\nstate = "s"\n', "sub/flow.toml")
        self.good("run", "sub", FLOW_STATE=self.path("state"))
        shown = json.loads(self.good("show", "--json", FLOW_STATE=self.path("state"), FLOW_CONFIG="sub/flow.toml").out)
        self.assertEqual(shown["result"], "here 1\n")
        os.symlink("sub/pipeline.lua", self.path("link.lua"))
        self.assertEqual(self.explained(script="link.lua")[("say", "tasks", "env.MODE")][0], "here")

    def test_errors_have_file_line_and_the_nearest_name(self):
        self.script('return say("1").stdout')
        for text, line, word in (("[tasks.say]\ncpu = 1\n", 2, "Did you mean `cpus`?"),
                                 ("[task.say]\ncpus = 1\n", 1, "Did you mean `tasks`?"),
                                 ("[tasks.say]\n\ncpus = true\n", 3, "must be a number, but is a boolean"),
                                 ("[tasks.say]\nmemory = \"lots\"\n", 2, "`memory`"),
                                 ("[tasks.other]\nwhere = \"a ==\"\n", 2, "`where`"),
                                 ("[profile.x.tasks.say]\nretries = { maxx = 1 }\n", 2, "did you mean `max`?"),
                                 ("[tasks.say]\nenv = { \"1A\" = \"x\" }\n", 2, "`1A`"),
                                 ("[tasks.say]\ntimeout = \"0s\"\n", 2, "a duration above 0"),
                                 ("[tasks.say]\nmodules = [\"\"]\n", 2, "`modules`"),
                                 ("[defaults]\njobs = 0\n", 2, "from 1 to 100000"),
                                 ("[defaults]\ngrace = \"soon\"\n", 2, "takes a time"),
                                 ("[defaults]\non = \"pbs\"\n", 2, "`on` is `slurm`"),
                                 ("[defaults]\nworkers = 1\non = \"slurm\"\n", 3, "give one of them"),
                                 ("[defaults]\non = \"slurm\"\n[slurm]\nelastic = \"8\"\n", 4, "`elastic` takes MIN:MAX"),
                                 ("x\n", 1, "not TOML")):
            self.toml(text)
            self.exits(2, self.flow("run", "."), "flow.toml:%d" % line, word)
        self.assertFalse(os.path.exists(self.state))

    def test_a_pattern_that_matches_no_task_is_a_warning(self):
        self.script('return say("1").stdout')
        self.toml('[tasks."align*"]\ncpus = 1\nmemory = 1\n')
        done = self.good("run", ".")
        self.assertEqual(done.err.count("matches no task"), 1, done)
        self.assertIn("flow.toml:1: [tasks.\"align*\"] matches no task of the pipeline `config`", done.err)

    # ---- precedence

    def test_tables_of_tasks_outrank_the_script_and_defaults_do_not(self):
        head = '''local a = flow.shell("a", { cpus = 1, env = { X = "script" }, command = [[set +u; echo $X $Y]] })
        local b = flow.shell("b", { command = [[set +u; echo $X $Y]] })\n'''
        self.script('return { a().stdout, b().stdout }', head)
        self.toml('[defaults]\ncpus = 2\ntimeout = "1m"\nenv = { X = "default", Y = "y" }\n[tasks.a]\nmemory = "1M"\n')
        got = self.explained()
        self.assertEqual(got[("a", "tasks", "cpus")], (1, "script pipeline.lua:2"))
        self.assertEqual(got[("b", "tasks", "cpus")], (2, "flow.toml:2 [defaults]"))
        self.assertEqual(got[("a", "tasks", "timeout")], ("1m", "flow.toml:3 [defaults]"))
        self.assertEqual(got[("a", "tasks", "memory")], ("1M", "flow.toml:6 [tasks.a]"))
        self.assertEqual(got[("a", "tasks", "env.X")], ("script", "script pipeline.lua:2"))
        self.assertEqual(got[("a", "tasks", "env.Y")], ("y", "flow.toml:4 [defaults]"))
        self.assertEqual(got[("a", "tasks", "priority")], (0, "default"))
        self.assertEqual(self.result(), ["script y\n", "default y\n"])
        self.toml('[tasks."*"]\nenv.X = "all"\n[tasks.a]\nenv.X = "long"\n[tasks.b]\nenv.X = "short"\n[tasks."[b]"]\nenv.X = "longer"\n')
        self.assertEqual(self.result(), ["long\n", "longer\n"])

    def test_a_profile_outranks_both_files(self):
        self.script('return say("1").stdout')
        self.toml('[tasks.say]\nenv.MODE = "home"\n[profile.p.tasks."*"]\nenv.MODE = "home profile"\n', "home/flow/flow.toml")
        self.toml('[tasks.say]\nenv.MODE = "script"\n[defaults]\njobs = 2\n[profile.p.defaults]\njobs = 3\n')
        self.assertEqual(self.result(), "script 1\n")
        self.assertEqual(self.result("--profile", "p"), "home profile 1\n")
        self.assertEqual(self.result(FLOW_PROFILE="p"), "home profile 1\n")
        jobs = (None, "defaults", "jobs")
        self.assertEqual(self.explained()[jobs], (2, "flow.toml:4 [defaults]"))
        self.assertEqual(self.explained("--profile", "p")[jobs], (3, "flow.toml:6 [profile.p.defaults]"))
        self.assertEqual(self.explained("--profile", "p", FLOW_JOBS="4")[jobs], (4, "FLOW_JOBS"))
        self.assertEqual(self.explained("-j", "5", FLOW_JOBS="4")[jobs], (5, "command line"))
        self.assertEqual(self.explained(FLOW_PROFILE="p")[(None, "defaults", "profile")], ("p", "FLOW_PROFILE"))
        self.exits(2, self.flow("run", ".", "--profile", "q"), "there is no profile `q`")
        self.exits(2, self.flow("run", ".", FLOW_JOBS="many"), "FLOW_JOBS", "many")
        os.remove(self.path("flow.toml"))
        os.remove(self.path("home/flow/flow.toml"))
        self.good("ls", FLOW_PROFILE="p")
        self.exits(2, self.flow("run", ".", FLOW_PROFILE="p"), "no flow.toml was found")

    def test_options_at_the_call_are_the_scripts(self):
        self.script('return { say("1").stdout, say:with { cpus = 0.5, memory = "2M" }("2").stdout }')
        self.toml('[defaults]\nmemory = "1M"\n[tasks.say]\ncpus = 0.25\n')
        lines = self.good("plan", ".", "--explain-config", "--json").lines()
        memory = [(line["value"], line["origin"]) for line in lines if line["option"] == "memory"]
        self.assertEqual(memory, [("1M", "flow.toml:2 [defaults]"), ("2MiB", "script pipeline.lua:2")])
        cpus = [(line["value"], line["origin"]) for line in lines if line["option"] == "cpus"]
        self.assertEqual(cpus, [(0.25, "flow.toml:4 [tasks.say]")])

    def test_calls_of_dynamic_tasks_have_the_options(self):
        head = SAY + 'local fan = flow.dynamic("fan", function(ctx) return say("1").stdout end)\n'
        self.script('return fan()', head)
        self.toml('[tasks.say]\nenv.MODE = "dynamic"\n')
        self.assertEqual(self.result(), "dynamic 1\n")

    # ---- options of tasks

    def rejected(self, text, *words):
        self.toml(text)
        self.exits(2, self.flow("run", "."), *words)

    def test_each_resource_changes_what_a_task_needs(self):
        self.script('return say("1").stdout')
        self.toml('[tasks.say]\ncpus = 0.5\nmemory = "2MiB"\ngpus = 2\ngpu_memory = 4096\ngpu = "H100|H200"\n'
                  'where = "disk == ssd"\nresources = { fpga = 2, license = 0.5 }\n'
                  'retries = { max = 2, backoff = "1ms", factor = 3.0, cap = "5s", oom = { max = 1, memory = "x3" }, infra = 7 }\n'
                  'timeout = "90s"\npriority = -3\nqueue = "slow"\n')
        got = {option: value for (task, _, option), value in self.explained().items() if task == "say"}
        values = {"cpus": 0.5, "memory": "2MiB", "gpus": 2, "gpu_memory": 4096, "gpu": "H100|H200",
                  "where": "disk == ssd", "resources": {"fpga": 2, "license": 0.5},
                  "retries": {"max": 2, "backoff": "1ms", "factor": 3, "cap": "5s",
                              "oom": {"max": 1, "memory": "x3"}, "infra": 7},
                  "timeout": "90s", "priority": -3, "queue": "slow"}
        unset = {name: None for name in ("before", "modules", "venv", "conda", "container")}
        self.assertEqual({name: value for name, (value, _) in got.items()}, dict(values, **unset))
        for line, name in enumerate(values, 2):
            self.assertEqual(got[name][1], "flow.toml:%d [tasks.say]" % line)
        self.rejected('[tasks.say]\nmemory = "1000TiB"\n', "say", "1000 TiB")
        self.rejected('[tasks.say]\ngpus = 64\n', "say", "gpus = 64")
        self.rejected('[tasks.say]\nwhere = "disk == ssd"\n', "disk == ssd")
        self.rejected('[tasks.say]\nresources = { fpga = 2 }\n', "fpga")
        self.good("run", ".", "--resource", "fpga=2")
        self.toml('[tasks.say]\ncpus = 100000\n')
        self.assertIn("100000", self.good("run", ".", "--fresh").err)

    def test_options_of_commands_apply_to_shell_tasks(self):
        head = 'local lua = flow.task("lua", function(ctx, text) return text end)\n'
        self.script('return { lua(say("1").stdout) }', head + 'local say = flow.shell("say", { args = { "x" }, command = [[echo {x}$WORD]] })\n')
        self.toml('[tasks."*"]\nbefore = "WORD=hello"\n')
        self.good("run", ".")
        self.assertEqual(self.show()["result"], ["1hello\n"])
        shown = {(task, option): value for (task, _, option), (value, _) in self.explained().items()}
        self.assertEqual(shown["say", "before"], "WORD=hello")
        self.assertNotIn(("lua", "before"), shown)
        self.rejected('[tasks.say]\ncontainer = "debian:12"\n', "flow.toml:2", "`container` must be", "docker://IMAGE")
        self.rejected('[tasks.say]\nmodules = ["-x"]\n', "flow.toml:2", "`modules` must be a list of modules")
        self.rejected('[tasks.say]\nvenv = "absent.txt"\n', "venv", "absent.txt")

    def test_retries_timeout_and_priority_change_a_run(self):
        head = 'local fail = flow.shell("fail", { command = [[echo x >> %s; false]] })\n' % self.path("tries")
        self.script('return fail().stdout', head)
        self.toml('[tasks.fail]\nretries = { max = 2, backoff = "0s" }\n')
        self.exits(1, self.flow("run", "."))
        self.assertEqual(self.read("tries"), "x\nx\nx\n")
        self.script('return slow().stdout', 'local slow = flow.shell("slow", { command = [[sleep 600]] })\n')
        self.toml('[tasks.slow]\ntimeout = "100ms"\n')
        self.exits(1, self.flow("run", ".", "--grace", "0s"), "100ms")
        head = ''.join('local %s = flow.shell("%s", { command = [[echo %s >> %s]] })\n' % (n, n, n, self.path("order"))
                       for n in ("a", "b", "c"))
        self.script('return { a().stdout, b().stdout, c().stdout }', head)
        self.toml('[defaults]\njobs = 1\n[tasks.b]\npriority = 5\n[tasks.c]\npriority = 9\n')
        self.good("run", ".")
        self.assertEqual(self.read("order"), "c\nb\na\n")

    def test_a_secret_is_read_from_the_environment_and_not_stored(self):
        self.script('return say("1").stdout', 'local say = flow.shell("say", { args = { "x" }, command = [[printf %s "$TOKEN" | wc -c]] })\n')
        self.toml('[tasks.say]\nenv = { TOKEN = { env = "MY_TOKEN" }, N = 3 }\n')
        secret = "quite-a-secret-value"
        self.assertEqual(self.result(MY_TOKEN=secret).strip(), str(len(secret)))
        for folder, _, names in os.walk(self.state):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    self.assertNotIn(secret.encode(), file.read(), name)
        self.exits(2, self.flow("run", "."), "MY_TOKEN")
        self.assertEqual(self.of_task("env.TOKEN"), ({"env": "MY_TOKEN"}, "flow.toml:2 [tasks.say]"))
        text = self.good("plan", ".", "--explain-config").out
        self.assertIn('flow.env("MY_TOKEN")', text)

    def test_variables_enter_the_key_and_resources_do_not(self):
        self.script('return say("1").stdout')
        self.toml('[tasks.say]\nenv.MODE = "a"\n')
        self.result()
        self.toml('[tasks.say]\nenv.MODE = "a"\ncpus = 0.5\nmemory = "64M"\nretries = 3\ntimeout = "1h"\npriority = 3\nqueue = "q"\n')
        self.result()
        self.assertTrue(self.tasks()["say"]["cached"])
        self.toml('[tasks.say]\nenv.MODE = "b"\n')
        self.assertEqual(self.result(), "b 1\n")
        self.assertFalse(self.tasks()["say"]["cached"])
        self.assertIn("MODE", self.good("why", "last", "say").out)

    # ---- options of runs

    def test_the_state_is_relative_to_the_file_and_other_verbs_use_it_too(self):
        os.mkdir(self.path("sub"))
        self.script('return say("1").stdout', name="sub/pipeline.lua")
        self.toml('[defaults]\nstate = "data/state"\n', "sub/flow.toml")
        self.good("run", "sub")
        self.assertTrue(os.path.isdir(self.path("sub/data/state")))
        self.toml('[defaults]\nstate = "sub/data/state"\n')
        self.assertEqual(len(self.runs()), 1)
        self.assertEqual(self.explained(script="sub")[(None, "defaults", "state")], ("data/state", "sub/flow.toml:2 [defaults]"))
        self.good("run", "sub", "--state", "given")
        self.good("run", "sub", FLOW_STATE="named")
        self.assertTrue(os.path.isdir(self.path("given")) and os.path.isdir(self.path("named")))
        self.assertEqual(len(self.runs()), 1)

    def test_jobs_limit_the_tasks_that_run_at_a_time(self):
        self.script('return { hold("%s", "a").stdout, hold("%s", "b").stdout }' % ((self.path("gate"),) * 2),
                    HOLD.replace('local flow = require "flow"', ""))
        self.toml('[defaults]\njobs = 1\n')
        run = self.start("run", ".")
        self.until("one task runs", lambda: os.path.exists(self.path("gate.started")))
        counts = self.show()["counts"]
        self.assertEqual((counts["running"], counts["ready"]), (1, 1))
        self.open("gate")
        self.assertEqual(self.end(run).code, 0)

    def test_flags_of_a_run(self):
        self.script('return { bad().stdout, say("1").stdout }',
                    SAY + 'local bad = flow.shell("bad", { on_error = "ignore", command = [[false]] })\n')
        self.good("run", ".")
        self.toml('[defaults]\nstrict = true\nlogs = true\n')
        done = self.exits(1, self.flow("run", ".", "--fresh"))
        self.assertIn("say | ", done.out)
        self.script('local b = bad() return { b.stdout, say("1"):after(flow.map(say, { "2", "3" })).stdout }',
                    SAY + 'local bad = flow.shell("bad", { priority = 9, command = [[false]] })\n')
        self.toml('[defaults]\nfail_fast = true\njobs = 1\ncpus = 1\n')
        self.exits(1, self.flow("run", ".", "--fresh"))
        self.assertEqual(self.show()["counts"]["succeeded"], 0)
        self.script('return flow.shell and say(flow.file("http://127.0.0.1:%d/x")).stdout' % unused_port())
        self.toml('[defaults]\noffline = true\n')
        self.exits(2, self.flow("run", "."), "offline")
        self.script('return say("1").stdout')
        self.toml('[defaults]\ngrace = "3s"\nfail_fast = true\nstrict = true\noffline = true\nlogs = true\nworkers = 2\n')
        got = self.explained()
        for line, (name, value) in enumerate((("grace", "3s"), ("fail_fast", True), ("strict", True), ("offline", True),
                                              ("logs", True), ("workers", 2)), 2):
            self.assertEqual(got[(None, "defaults", name)], (value, "flow.toml:%d [defaults]" % line))

    def test_workers_of_a_file_run_the_tasks(self):
        self.script('return say("1").stdout')
        self.toml('[defaults]\nworkers = 1\njobs = 1\n')
        self.good("run", ".")
        self.assertNotIn(self.tasks()["say"]["worker"], ("", None))

    def test_slurm_options_are_those_of_its_request(self):
        self.script('return say("1").stdout')
        self.toml('[slurm]\nnodes = 3\nidle = "5m"\ngpus_per_node = 4\ntime = "2h"\npartition = "fast"\naccount = "me"\n'
                  'qos = "high"\nconstraint = "ssd"\narguments = ["--reservation=today"]\nlisten = "127.0.0.1:0"\n')
        self.assertNotIn("sbatch", self.good("plan", ".").out)
        asked = self.good("plan", ".", "--on", "slurm").out
        for word in ("--nodes=3", "--partition=fast", "--account=me", "--qos=high", "--constraint=ssd", "--reservation=today"):
            self.assertIn(word, asked)
        got = self.explained("--on", "slurm", "--partition", "slow")
        self.assertEqual(got[(None, "slurm", "partition")], ("slow", "command line"))
        self.assertEqual(got[(None, "slurm", "idle")], ("5m", "flow.toml:3 [slurm]"))
        self.assertEqual(got[(None, "slurm", "gpus_per_node")], (4, "flow.toml:4 [slurm]"))
        self.assertEqual(got[(None, "slurm", "time")], ("2h", "flow.toml:5 [slurm]"))
        self.assertEqual(got[(None, "slurm", "listen")], ("127.0.0.1:0", "flow.toml:11 [slurm]"))
        self.toml('[profile.cluster.defaults]\non = "slurm"\n[profile.cluster.slurm]\nelastic = "0:2"\npartition = "fast"\n')
        self.assertIn("--partition=fast", self.good("plan", ".", "--profile", "cluster").out)
        self.assertEqual(self.explained("--profile", "cluster")[(None, "slurm", "elastic")][0], "0:2")

    def test_a_head_of_a_file_is_used_unless_a_state_is_named(self):
        port = unused_port()
        head = self.start("head", "--listen", "127.0.0.1:%d" % port, "--jobs", "1", "--state", "heads", "--json")
        address = json.loads(head.stdout.readline())
        self.script('return say("1").stdout')
        self.toml('[head]\naddress = "%s"\nsecret_file = "heads/secret"\n[tasks.say]\nenv.MODE = "client"\n' % address["address"])
        self.good("run", ".")
        self.assertFalse(os.path.exists(self.state))
        shown = json.loads(self.good("show", "last", "--json", "--state", "heads").out)
        self.assertEqual((shown["status"], shown["result"]), ("succeeded", "client 1\n"))
        self.assertEqual(self.explained()[(None, "head", "address")], (address["address"], "flow.toml:2 [head]"))
        self.assertEqual(len(self.good("nodes", "--json").lines()), 1)
        self.good("run", ".", "--state", "mine")
        self.good("run", ".", FLOW_STATE="mine")
        self.toml('[head]\naddress = "127.0.0.1:1"\nsecret_file = "heads/secret"\n')
        self.good("run", ".", FLOW_HEAD=address["address"])
        self.assertEqual(len(self.good("ls", "--json", "--state", "heads").lines()), 2)
        head.terminate()
        self.end(head)

    def test_a_client_of_a_head_reads_its_own_files_again_with_new_code(self):
        head = self.start("head", "--listen", "127.0.0.1:%d" % unused_port(), "--jobs", "1", "--state", "heads", "--json")
        address = json.loads(head.stdout.readline())["address"]
        self.toml('[head]\naddress = "%s"\nsecret_file = "%s"\n' % (address, self.path("heads/secret")), "home/flow/flow.toml")
        self.script('return check().stdout', 'local check = flow.shell("check", { command = [[echo $MODE; test $MODE = good]] })\n')
        self.toml('[tasks.check]\nenv.MODE = "bad"\n')
        self.exits(1, self.flow("run", "."))
        self.toml('[tasks.check]\nenv.MODE = "good"\n')
        self.exits(1, self.flow("resume"))
        os.mkdir(self.path("elsewhere"))
        self.good("resume", "--code", "new", before=("env", "-C", self.path("elsewhere")))
        self.assertEqual(json.loads(self.good("show", "--json", "--state", "heads").out)["result"], "good\n")
        head.terminate()
        self.end(head)

    def test_prices_and_budgets_are_explained(self):
        self.script('return say("1").stdout')
        self.toml('[prices]\ncurrency = "USD"\ncpu_hour = 0.05\nmemory_gb_hour = 0.01\ngpu_hour."H200" = 3\negress_gb = 0.1\n'
                  'include = "prices.toml"\n[prices.label."pool=spot"]\ncpu_hour = 0.01\n'
                  '[defaults]\nbudget = "50 USD"\n')
        self.toml('cpu_hour = 0.2\ngpu_hour.H100 = 2.5\n', "prices.toml")
        lines = self.good("plan", ".", "--explain-config", "--json").lines()
        got = {line["option"]: (line["value"], line["origin"]) for line in lines
               if line["table"] == "prices" or line["option"] == "budget"}
        self.assertEqual(got, {
            "currency": ("USD", "flow.toml:2 [prices]"), "cpu_hour": (0.05, "flow.toml:3 [prices]"),
            "memory_gb_hour": (0.01, "flow.toml:4 [prices]"), "gpu_hour.H200": (3, "flow.toml:5 [prices]"),
            "gpu_hour.H100": (2.5, "prices.toml:2"), "egress_gb": (0.1, "flow.toml:6 [prices]"), "include": ("prices.toml", "flow.toml:7 [prices]"),
            'label."pool=spot".cpu_hour': (0.01, 'flow.toml:9 [prices.label."pool=spot"]'),
            "budget": ("50 USD", "flow.toml:11 [defaults]")})
        self.toml('cpu_hours = 0.2\n', "prices.toml")
        self.exits(2, self.flow("run", "."), "prices.toml:1", "Did you mean `cpu_hour`?")
        self.exits(2, self.flow("run", ".", FLOW_CONFIG="prices.toml"), "unknown key")
        os.remove(self.path("prices.toml"))
        self.exits(2, self.flow("run", "."), "flow.toml:7", "prices.toml")
        self.toml("", "prices.toml")
        self.assertEqual({line["option"] for line in lines if not line["has_effect"]}, set())
        self.assertNotIn("(no effect yet)", self.good("plan", ".", "--explain-config").out)
        self.good("run", ".")

    # ---- what a run keeps

    def test_a_run_keeps_its_configuration_and_new_code_reads_it_again(self):
        head = 'local check = flow.shell("check", { command = [[echo mode $MODE; test "$MODE" = good]] })\n'
        self.script('return check().stdout', head)
        self.toml('[tasks.check]\nenv.MODE = "bad"\n[defaults]\nlogs = true\n[profile.p.tasks.check]\nenv.MODE = "worse"\n')
        self.exits(1, self.flow("run", ".", "--profile", "p"), "check | mode worse")
        self.toml('[tasks.check]\nenv.MODE = "good"\n[profile.p.tasks.check]\nretries = 1\n[profile.q.tasks.check]\nenv.MODE = "bad"\n')
        self.exits(1, self.flow("resume"), "check@2 | mode worse")
        self.exits(2, self.flow("resume", "--profile", "q"), "--code new")
        self.exits(1, self.flow("resume", "--code", "new", "--profile", "q"))
        self.good("resume", "--code", "new", "--profile", "p")
        self.assertEqual(self.show()["result"], "mode good\n")

    def test_new_code_keeps_the_profile_of_the_run(self):
        head = 'local check = flow.shell("check", { command = [[test "$MODE" = good]] })\n'
        self.script('return check().stdout', head)
        self.toml('[profile.p.tasks.check]\nenv.MODE = "bad"\n')
        self.exits(1, self.flow("run", ".", "--profile", "p"))
        self.toml('[profile.p.tasks.check]\nenv.MODE = "good"\n')
        self.exits(1, self.flow("retry", "last"))
        self.good("resume", "--code", "new")

    def test_a_client_of_another_process_sends_its_configuration(self):
        self.script('return hold("%s", "a").stdout' % self.path("gate"), HOLD.replace('local flow = require "flow"', ""), "hold.lua")
        writer = self.start("run", "hold.lua")
        self.until_holds("a")
        self.script('return say("1").stdout')
        self.toml('[tasks.say]\nenv.MODE = "client"\n[profile.p.tasks.say]\nenv.MODE = "profile"\n')
        self.good("run", ".", "--name", "client")
        self.good("run", ".", "--name", "profile", "--profile", "p")
        self.assertEqual(self.show("client")["result"], "client 1\n")
        self.assertEqual(self.show("profile")["result"], "profile 1\n")
        self.open("gate")
        self.assertEqual(self.end(writer).code, 0)


if __name__ == "__main__":
    main()
