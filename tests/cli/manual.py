#!/usr/bin/env python3
"""The manual pages: one for each verb with all of its options, which groff formats without a warning.

usage: manual.py --flow BIN [TEST...]
"""
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "state"))
from place import Place, main  # noqa: E402

REFERENCE = os.path.join(HERE, "..", "..", "docs", "reference-cli.md")


def plain(page):
    """The text of a page, without fonts and escapes."""
    text = re.sub(r"\\f[BIR]", "", page)
    for code, char in ((r"\(aq", "'"), (r"\(ha", "^"), (r"\(ti", "~"), (r"\-", "-"), (r"\&", ""), (r"\e", "\\")):
        text = text.replace(code, char)
    return text


def flat(text):
    """In one line: pages break lines between words."""
    return " ".join(text.split())


def section(page, title):
    """The lines of one section of a plain page."""
    found = re.search(r'^\.SH "?%s"?\n(.*?)(?=^\.SH |\Z)' % title, page, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


class Manual(Place):
    def setUp(self):
        super().setUp()
        self.good("manual", self.path("man"))

    def verbs(self):
        text = self.good("--help").out.split("Subcommands:")[1]
        return dict(re.findall(r"^  ([a-z]+) +(.*)", text, re.MULTILINE))

    def page(self, verb):
        return plain(self.read(os.path.join("man", "flow-%s.1" % verb if verb else "flow.1")))

    def test_every_program_and_verb_has_a_page_and_that_of_flow_names_it(self):
        verbs = self.verbs()
        pages = {"flow.1", "flow-executor.1"} | {"flow-%s.1" % verb for verb in verbs}
        self.assertEqual(set(os.listdir(self.path("man"))), pages)
        for verb, what in verbs.items():
            self.assertIn(flat(".TP %s %s" % (verb, what)), flat(section(self.page(""), "VERBS")))
            self.assertIn(".BR flow-%s (1)" % verb, section(self.page(""), "SEE ALSO"))

    def test_a_page_has_each_section_and_each_option_with_its_help(self):
        for verb, what in self.verbs().items():
            with self.subTest(verb):
                page = self.page(verb)
                self.assertEqual(section(page, "NAME"), "flow-%s - %s\n" % (verb, what))
                self.assertIn("flow %s [OPTION]..." % verb, section(page, "SYNOPSIS"))
                for title in ("DESCRIPTION", "EXIT STATUS", "ENVIRONMENT", "FILES", "SEE ALSO"):
                    self.assertNotEqual(section(page, title).strip(), "", title)
                for short, name, value, text in self.options(verb):
                    names = (short + ", " if short else "") + name + (" " + value if value else "")
                    self.assertIn(flat(".TP %s %s" % (names, text.replace("`", ""))), flat(section(page, "OPTIONS")))
                for other in re.findall(r"\.BR flow-([a-z]+) \(1\)", page):
                    self.assertIn(other, self.verbs())

    def options(self, verb):
        """(short name, long name, value, help) of each option that the help lists."""
        text = self.good(verb, "--help").out.split("Options:")[1]
        listed = re.findall(r"^  (?:(-\w),)?(--[a-z-]+) ?(\S*?)(?: \.\.\.)? +([^\s.].*)$", text, re.MULTILINE)
        self.assertEqual(len(listed), len(re.findall(r"^  -", text, re.MULTILINE)), text)
        return listed

    def test_variables_and_exit_codes_are_those_of_the_reference(self):
        with open(REFERENCE) as file:
            reference = file.read()
        table = reference.split("## Environment variables")[1].split("## ")[0]
        named = re.findall(r"`([A-Z_]+)", "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `")))
        self.assertGreater(len(named), 10)
        for name in named:
            self.assertRegex(section(self.page(""), "ENVIRONMENT"), r"(?m)^(?:.*, )?%s" % name)
        codes = re.findall(r"^\| (\d) \|", reference.split("## Exit codes")[1].split("## ")[0], re.MULTILINE)
        self.assertEqual(re.findall(r"^\.TP\n(\d)\n", section(self.page("run"), "EXIT STATUS"), re.MULTILINE), codes)

    def test_groff_formats_every_page_without_a_warning(self):
        if shutil.which("groff") is None:
            self.skipTest("groff is not installed (Debian: groff-base)")
        for name in sorted(os.listdir(self.path("man"))):
            done = subprocess.run(["groff", "-ww", "-rCHECKSTYLE=3", "-Kutf8", "-man", "-Tutf8", self.path("man", name)], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)
            with open(self.path("man", name), "rb") as file:
                self.assertLessEqual(max(len(line.rstrip(b"\n")) for line in file), 80, name)
            self.assertIn("SEE ALSO", re.sub(r"\x1b\[\d*m|.\x08", "", done.stdout), name)

    def test_mandoc_finds_nothing_to_correct(self):
        if shutil.which("mandoc") is None:
            self.skipTest("mandoc is not installed")
        for name in sorted(os.listdir(self.path("man"))):
            done = subprocess.run(["mandoc", "-T", "lint", self.path("man", name)], capture_output=True, text=True)
            self.assertEqual(done.stdout + done.stderr, "", name)

    def test_the_pages_of_a_day_are_the_same_every_time(self):
        for folder in ("first", "second"):
            self.good("manual", self.path(folder), SOURCE_DATE_EPOCH="86400")
        for name in os.listdir(self.path("first")):
            self.assertEqual(self.read("first/" + name), self.read("second/" + name))
        self.assertIn('"1970-01-02"', self.read("first/flow.1"))

    def test_the_verb_is_listed_nowhere(self):
        for words in (["--help"], ["completion", "bash"], ["completion", "zsh"], ["completion", "fish"]):
            self.assertNotIn("manual", self.good(*words).out)
        self.exits(2, self.flow("manua"), "no verb `manua`. `flow --help`")

    def test_a_folder_that_cannot_be_written_is_an_error(self):
        self.write("file", "")
        self.exits(4, self.flow("manual", self.path("file")), "cannot", "file")


if __name__ == "__main__":
    main()
