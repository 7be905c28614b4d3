#!/usr/bin/env python3
"""The digits example serves requests, and the commands that it prints and that its README shows
work in a shell."""
import argparse
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def said(command):
    return json.loads(subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def proof(flow, state):
    run = subprocess.Popen([flow, "run", "examples/digits", "--serve-for", "600s", "--state", state], cwd=ROOT,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        lines = []
        printed = None
        for line in run.stdout:
            lines.append(line)
            if line.startswith("  curl "):
                printed = line.strip()
            if printed and line.startswith("result: "):
                break
        assert printed, f"no curl line in:\n{''.join(lines)}"
        accuracy = float(re.search(r'"accuracy":([0-9.]+)', lines[-1]).group(1))
        assert accuracy >= 0.95, lines[-1]

        assert said(printed)["name"] == "digits", printed
        readme = (ROOT / "examples/digits/README.md").read_text()
        infer = re.search(r"^curl .*?^```$", readme, re.MULTILINE | re.DOTALL).group(0).removesuffix("```")
        answer = said(infer.replace("PORT", re.search(r":(\d+)/", printed).group(1)))
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        assert outputs["label"] == [0], answer

        run.send_signal(signal.SIGTERM)
        rest, _ = run.communicate(timeout=120)
        print(f"accuracy {accuracy:.4f}, both requests answered; after SIGTERM: {run.returncode} {rest.strip()}")
    finally:
        if run.poll() is None:
            run.kill()
            run.communicate()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    arguments = parser.parse_args()
    if not shutil.which("curl"):
        print("skipped: curl is not installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="flow-digits-") as folder:
        proof(arguments.flow, folder + "/state")


main()
