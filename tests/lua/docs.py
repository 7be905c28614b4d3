#!/usr/bin/env python3
"""The Lua code in the documents runs: whole scripts run, fragments are built into a graph.
Every function in the editor annotations occurs in a test.

usage: docs.py --flow BIN
"""
import argparse
import http.server
import os
import pathlib
import re
import subprocess
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PARAMETERS = ["--param", "text=words.txt"]
# Definitions that the fragments of the guide assume.
GIVEN = '''local flow = require "flow"
local start, improve, download = print, print, print
local count, merge, parts = flow.task("given.count", print), flow.task("given.merge", print), { 1, 2 }
local align = flow.task("given.align", print)
'''
DEFINES = re.compile(r"^local (\w+)\s*= flow\.(?:task|shell|service|dynamic)\(", re.M)


class Bucket(http.server.BaseHTTPRequestHandler):
    """Answers requests to S3 with a list of one object."""
    LIST = ("<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated><Contents><Key>tables/a.parquet</Key>"
            "<Size>1</Size></Contents></ListBucketResult>").encode()

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.LIST)))
        self.end_headers()
        self.wfile.write(self.LIST)

    def log_message(self, *_):
        pass


def blocks():
    """(file, line, text) of every block of Lua."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text()
        for found in re.finditer(r"^```lua\n(.*?)^```", text, re.M | re.S):
            yield path.name, text[:found.start()].count("\n") + 2, found.group(1)


def script_of(block):
    """Makes a whole script of a fragment: the body calls the tasks that it defines, with a
    handle."""
    defined = DEFINES.findall(block)
    if not defined:
        return GIVEN + 'return flow.pipeline("fragment", {}, function()\n' + block + "end)\n"
    calls = "".join("  %s(given)\n" % name for name in defined)
    return (GIVEN + block + 'return flow.pipeline("fragment", {}, function()\n  local given = count(1)\n' +
            calls + "end)\n")


def check_blocks(flow, folder):
    problems, whole = [], 0
    for name in ("words.txt", "texts/a.txt", "reads/s1_R1.fastq.gz", "reads/s1_R2.fastq.gz",
                 "requirements.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("one two\n")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {**os.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:%d" % server.server_address[1], "no_proxy": "*"}
    for file, line, block in blocks():
        is_whole = "return flow.pipeline(" in block
        whole += is_whole
        script = folder / "doc.lua"
        script.write_text(block if is_whole else script_of(block))
        parameters = [p for p in PARAMETERS if is_whole and "flow.param.path" in block]
        command = [flow, "run" if is_whole else "plan", "doc.lua", *parameters, "--state", "state"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              env=environment)
        if done.returncode != 0:
            problems.append(f"{file}:{line}: `{' '.join(command[1:])}` ended with {done.returncode}:\n{done.stderr}")
    server.shutdown()
    if whole < 2:
        problems.append(f"the documents have {whole} whole scripts: they lie elsewhere now?")
    return problems


def check_annotated():
    """Functions that occur in no test."""
    annotations = (ROOT / "stdlib/library/flow.lua").read_text()
    tests = "".join(path.read_text() for folder in (HERE, HERE.parent / "api", HERE.parent / "runs", HERE.parent / "interop")
                    for path in folder.rglob("*") if path.suffix in (".lua", ".cc", ".py"))
    names = re.findall(r"^function \w+[.:](\w+)\(", annotations, re.M)
    return [f"`{name}` of stdlib/library/flow.lua stands in no test of tests/lua, tests/api, tests/runs or tests/interop"
            for name in names if not re.search(r"[.:]%s\b" % name, tests)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    flow = os.path.abspath(parser.parse_args().flow)
    with tempfile.TemporaryDirectory(prefix="flow-docs-") as folder:
        problems = check_blocks(flow, pathlib.Path(folder)) + check_annotated()
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
