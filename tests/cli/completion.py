#!/usr/bin/env python3
"""The completions of bash, zsh and fish load, and complete verbs, options, runs, tasks, formats, signals and parameters.
In bash they are typed in a terminal. Skipped (77) if the shell is not installed.

usage: completion.py bash FLOW, the real one; completion.py zsh|fish FLOW, a flow with the fake engine
"""
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

SECONDS_MAX = 120

# zsh completes only in an editor: here the functions that would add candidates print them.
PRINTED = """
compadd() { while [[ $1 != -- ]]; do shift; done; shift; print -rl -- "${(@M)@:#$words[CURRENT]*}" }
_describe() { compadd -- "${(@P)2%%:*}" }
_files() { print FILES }
words=(flow "$@")
CURRENT=$#words
_flow
"""
COMPINIT = "autoload -Uz compinit && compinit -u -D && "
LOADED = " && [[ $_comps[flow] == _flow ]] || exit 9\n"
WAYS = {"zsh": [COMPINIT + 'eval "$(flow completion zsh)"' + LOADED, "fpath=($PWD $fpath) && " + COMPINIT + "true" + LOADED],
        "fish": ["flow completion fish | source; complete -C $argv[1]"]}
# Words before the cursor, and the candidates.
CASES = [(["re"], ["repl", "report", "resume", "retry"]), (["run", "--f"], ["--fail-fast", "--fresh"]),
         (["completion", ""], ["bash", "fish", "zsh"]), (["logs", "las"], ["last"]), (["why", "last", "t"], ["train"]),
         (["signal", "waits", ""], ["approved"]), (["graph", "--format", "s"], ["svg"])]

SCRIPT = r'''
local flow = require "flow"
local align = flow.task("align", function(ctx, n) return n end)
local assemble = flow.task("assemble", function(ctx, list) return #list end)
local ask = flow.task("ask", function(ctx) return ctx:wait("approved") end)
return flow.pipeline("p", {
  rate = flow.param.number { default = 0.5 },
  mode = flow.param.choice { "fast", "exact", default = "fast" },
  wait = flow.param.boolean { default = false },
}, function(p)
  local n = assemble(flow.map(align, { 1, 2 }))
  if p.wait then return { n, ask() } end
  return n
end)
'''
# What is typed before TAB in bash, and what the line is then.
TYPED = [
    ("flow sho", "flow show "),
    ("flow resume --quie", "flow resume --quiet "),
    ("flow logs last ass", "flow logs last assemble "),
    ("flow why ali", "flow why align "),
    ("flow why last align[2", "flow why last align\\[2\\] "),
    ("flow show named ask", "flow show named ask "),
    ("flow signal named app", "flow signal named approved "),
    ("flow signal nam", "flow signal named "),
    ("flow graph --format merm", "flow graph --format mermaid "),
    ("flow run pipe", "flow run pipeline.lua "),
    ("flow run pipeline.lua --param ra", "flow run pipeline.lua --param rate="),
    ("flow run pipeline.lua --param mode=ex", "flow run pipeline.lua --param mode=exact "),
    ("flow plan pipeline.lua --param mode=exact --params val", "flow plan pipeline.lua --param mode=exact --params values.json "),
    ("flow --state other ls --js", "flow --state other ls --json "),
    ("flow logs --state other la", "flow logs --state other la"),
    ("flow get last -o fol", "flow get last -o folder/"),
]
# What is typed, and the candidates that begin like its last word.
LISTED = [("flow why last a", ["align", "ask", "assemble"]), ("flow graph --format ", ["dot", "json", "mermaid", "svg"]),
          ("flow run pipeline.lua --param ", ["mode=", "rate=", "wait="]), ("flow show last align[", ["align[1]", "align[2]"]),
          ("flow run pipeline.lua --log-level ", ["debug", "error", "info", "off", "trace", "warning"]),
          ("flow run missing.lua --param ", []), ("flow nothing ", []), ("flow completion ", ["bash", "fish", "zsh"])]


def ran(*words, codes=(0,)):
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS_MAX, stdin=subprocess.DEVNULL)
    if done.returncode not in codes or (done.stderr and codes == (0,)):
        sys.exit(f"{words} exits with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def completed(shell, way, words):
    if shell == "zsh":
        return ran("zsh", "-f", "-c", way + PRINTED, "zsh", *words).splitlines()
    lines = ran("fish", "--no-config", "-c", way, "flow " + " ".join(words)).splitlines()
    return [line.split("\t")[0] for line in lines]


class Bash:
    """An interactive bash in a terminal."""

    def __init__(self):
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        self.seen = ""
        self.type("bind 'set enable-bracketed-paste off'; bind 'set bell-style none'; source <(flow completion bash); "
                  r"""bind -x '"\C-x\C-p": echo "<<""<$READLINE_LINE>>>"'; echo rea""dy""" + "\n")
        self.until("ready\r")

    def type(self, text):
        os.write(self.terminal, text.encode())

    def until(self, pattern):
        """Reads what is shown until it has the pattern, and returns the match."""
        while not (found := re.search(pattern, self.seen)):
            if not select.select([self.terminal], [], [], SECONDS_MAX)[0]:
                sys.exit(f"bash never shows {pattern!r}, but {self.seen!r}")
            self.seen += os.read(self.terminal, 65536).decode(errors="replace")
        self.seen = self.seen[found.end():]
        return found

    def line_after_tab(self, typed):
        self.type(typed + "\t\x18\x10")  # the keys that print the line
        line = self.until(r"<<<(.*)>>>").group(1)
        self.type("\x15")  # removes the line
        return line

    def close(self):
        os.close(self.terminal)
        os.waitpid(self.child, 0)


def check_bash():
    for name, text in (("pipeline.lua", SCRIPT), ("values.json", "{}")):
        with open(name, "w") as file:
            file.write(text)
    os.mkdir("folder")
    waits = subprocess.Popen(["flow", "run", "pipeline.lua", "--quiet", "--name", "named", "--param", "wait=true"])
    end = time.monotonic() + SECONDS_MAX
    while "approved" not in ran("flow", "show", "named", codes=(0, 2)):
        if time.monotonic() > end:
            sys.exit("the task never waits")
        time.sleep(0.1)
    os.environ["HISTFILE"] = os.devnull
    for typed, expected in LISTED:
        words = typed.replace("=", " = ").split(" ")[1:]
        found = ran("flow", "__complete", *words).splitlines()[1:]
        if sorted(word for word in found if word.startswith(words[-1])) != expected:
            sys.exit(f"{typed!r} has the candidates {found}, not {expected}")
    trap = "x'$(touch trapped)'"
    ran("flow", "run", "pipeline.lua", "--quiet", "--name", trap)
    bash = Bash()
    for typed, line in TYPED:
        shown = bash.line_after_tab(typed)
        if shown != line:
            sys.exit(f"`{typed}` becomes {shown!r}, not {line!r}")
    bash.line_after_tab("flow show x")
    bash.close()
    if os.path.exists("trapped"):
        sys.exit("bash executes the name of a run")
    ran("flow", "signal", "named", "approved")
    if waits.wait(SECONDS_MAX) != 0:
        sys.exit("the run fails")


def check_others(shell):
    os.environ.update(HOME=os.getcwd(), XDG_CONFIG_HOME=os.getcwd(), XDG_DATA_HOME=os.getcwd(), TERM="dumb")
    for name in ("_flow", "report.txt"):  # the second begins like two verbs
        with open(name, "w") as file:
            file.write(ran("flow", "completion", "zsh"))
    for way in WAYS[shell]:
        for words, expected in CASES:
            found = sorted(completed(shell, way, words))
            if found != expected:
                sys.exit(f"{shell}: {way}\n`flow {' '.join(words)}` gives {found}, not {expected}")


def main():
    shell, program = sys.argv[1:]
    if shutil.which(shell) is None:
        print(f"skipped: {shell} is not installed")
        sys.exit(77)
    os.environ["PATH"] = os.path.dirname(os.path.abspath(program)) + ":" + os.environ["PATH"]
    os.environ.pop("FLOW_STATE", None)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        check_bash() if shell == "bash" else check_others(shell)


main()
