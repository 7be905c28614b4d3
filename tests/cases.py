#!/usr/bin/env python3
"""Makes the cases of the Catch2 programs ctest entries; reads them from the sources when ctest starts.

usage: cases.py FOLDER          prints CMake code: one entry with the label `case` for each case
       cases.py --check FOLDER  compares the names with those that the built programs list

FOLDER has one file per program, which cmake/FlowTests.cmake writes: lines `program PATH`, `source PATH`,
`timeout SECONDS` and `environment NAME=VALUE`.
"""
import pathlib
import re
import subprocess
import sys

CASE = re.compile(r'^(TEMPLATE_)?TEST_CASE\(\s*((?:"(?:[^"\\\n]|\\.)*"\s*)+)(?:,\s*"([^"]*)")?', re.M)
STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
ESCAPES = {"n": "\n", "t": "\t"}


class Program:
    def __init__(self, path):
        self.name, self.file, self.sources, self.timeout, self.environment = path.name, "", [], "", []
        for line in path.read_text().splitlines():
            word, value = line.split(" ", 1)
            if word == "program":
                self.file = value
            elif word == "source":
                self.sources.append(value)
            elif word == "timeout":
                self.timeout = value
            else:
                self.environment.append(value)

    def cases(self):
        """(name, whether Catch2 appends a type to it) of each case."""
        for source in self.sources:
            try:
                text = pathlib.Path(source).read_text()
            except FileNotFoundError:  # deleted since CMake ran
                continue
            for is_template, literals, tags in CASE.findall(text):
                if "[." in tags:  # runs only where an entry of its own asks for it
                    continue
                name = "".join(STRING.findall(literals))
                yield re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), name), bool(is_template)


def pattern(name, is_template):
    """The argument with which a program runs only this case."""
    return re.sub(r'([\\,\["*~])', r"\\\1", name) + (" - *" if is_template else "")


def quoted(text):
    return "[====[" + text + "]====]"


def print_entries(programs):
    for program in programs:
        properties = ["LABELS case"]
        if program.timeout:
            properties.append("TIMEOUT " + program.timeout)
        if program.environment:
            properties.append("ENVIRONMENT " + quoted(";".join(program.environment)))
        for name, is_template in program.cases():
            entry = quoted(f"{program.name}: {name}")
            print(f"add_test({entry} {quoted(program.file)} {quoted(pattern(name, is_template))})")
            print(f"set_tests_properties({entry} PROPERTIES {' '.join(properties)})")


def listed(program, *arguments):
    # Its exit status is the number of cases.
    done = subprocess.run([program.file, *arguments, "--list-test-names-only"], capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if line]


def check(programs):
    problems, count = [], 0
    for program in programs:
        if not pathlib.Path(program.file).exists():
            continue
        count += 1
        read, known = dict(program.cases()), listed(program)
        plain = {name for name in known if name in read}
        for name in known:
            if name not in read and not any(name.startswith(each + " - ") for each, is_template in read.items() if is_template):
                problems.append(f"{program.name}: `{name}` was not found in its sources")
        for name, is_template in read.items():
            if not is_template and name not in plain:
                problems.append(f"{program.name}: it has no case `{name}`")
            elif re.search(r"[^\w ]", name) and name in plain and listed(program, pattern(name, False)) != [name]:
                problems.append(f"{program.name}: `{pattern(name, False)}` does not run `{name}` alone")
    print("\n".join(problems) or f"the cases of {count} programs are those of their sources")
    return 1 if problems else 0


def main():
    programs = [Program(path) for path in sorted(pathlib.Path(sys.argv[-1]).iterdir())]
    if sys.argv[1] == "--check":
        return check(programs)
    return print_entries(programs)


if __name__ == "__main__":
    sys.exit(main())
