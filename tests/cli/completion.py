#!/usr/bin/env python3
"""The completions of zsh and fish load, and complete verbs, options and runs. Skipped (77) if the shell is not installed.

usage: completion.py zsh|fish FLOW, a flow with the fake engine
"""
import os
import shutil
import subprocess
import sys
import tempfile

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
CASES = [(["re"], ["repl", "resume", "retry"]), (["run", "--f"], ["--fail-fast", "--fresh"]),
         (["completion", ""], ["bash", "fish", "zsh"]), (["logs", "las"], ["last"])]


def ran(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if done.returncode or done.stderr:
        sys.exit(f"{words[0]} exits with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def completed(shell, way, words):
    if shell == "zsh":
        return ran("zsh", "-f", "-c", way + PRINTED, "zsh", *words).splitlines()
    lines = ran("fish", "--no-config", "-c", way, "flow " + " ".join(words)).splitlines()
    return [line.split("\t")[0] for line in lines]


def main():
    shell, program = sys.argv[1:]
    if shutil.which(shell) is None:
        print(f"skipped: {shell} is not installed")
        sys.exit(77)
    os.environ["PATH"] = os.path.dirname(os.path.abspath(program)) + ":" + os.environ["PATH"]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ.update(HOME=folder, XDG_CONFIG_HOME=folder, XDG_DATA_HOME=folder, TERM="dumb")
        for name in ("_flow", "report.txt"):  # the second begins like two verbs
            with open(name, "w") as file:
                file.write(ran("flow", "completion", "zsh"))
        for way in WAYS[shell]:
            for words, expected in CASES:
                found = sorted(completed(shell, way, words))
                if found != expected:
                    sys.exit(f"{shell}: {way}\n`flow {' '.join(words)}` gives {found}, not {expected}")


main()
