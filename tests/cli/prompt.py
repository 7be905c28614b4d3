#!/usr/bin/env python3
"""The prompt of `flow repl`: line editing, history and the words help, exit and quit in a terminal; none of them in a pipe.

usage: prompt.py --flow BIN [TEST...]
"""
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import OPTIONS, WAIT_SECONDS_MAX, Place, main  # noqa: E402

UP, LEFT, CTRL_A, CTRL_C, CTRL_D = "\x1b[A", "\x1b[D", "\x01", "\x03", "\x04"


class Prompt(Place):
    def setUp(self):
        super().setUp()
        self.env.update(TERM="xterm", HOME=self.folder, LC_ALL="C.UTF-8")
        self.env.pop("XDG_STATE_HOME", None)
        self.history = self.path(".local", "state", "flow", "repl_history")
        self.edits = False

    def open_prompt(self):
        self.terminal, other = pty.openpty()
        self.process = subprocess.Popen([OPTIONS.flow, "repl"], cwd=self.folder, env=self.env, stdin=other, stdout=other,
                                        stderr=other, start_new_session=True)
        self.processes.append(self.process)
        os.close(other)
        self.addCleanup(os.close, self.terminal)
        self.seen = ""
        self.until("> ")

    def type(self, text):
        # The prompt appears before the terminal is in the editor's mode, in which Ctrl-C is a key.
        while self.edits and termios.tcgetattr(self.terminal)[3] & termios.ISIG:
            self.assertIsNone(self.process.poll())
            time.sleep(0.01)
        os.write(self.terminal, text.encode())

    def until(self, text):
        """Reads up to the text, and returns what was shown before."""
        while text not in (plain := re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.seen)):
            ready = select.select([self.terminal], [], [], WAIT_SECONDS_MAX)[0]
            self.assertTrue(ready, "%r never appears in %r" % (text, self.seen))
            self.seen += os.read(self.terminal, 65536).decode(errors="replace")
        before, self.seen = plain.split(text, 1)
        return before

    def answer(self, line, expected):
        """Types a line, and waits for what it prints."""
        self.type(line + "\r")
        self.until("\r\n" + expected + "\r\n")
        self.until("> ")

    def end(self):
        try:
            while os.read(self.terminal, 65536):
                pass
        except OSError:  # the other side is closed
            pass
        self.assertEqual(self.process.wait(WAIT_SECONDS_MAX), 0)

    def needs_editing(self):
        """In a build without libedit there is none."""
        self.open_prompt()
        self.answer("41 + 1", "42")
        if not os.path.exists(self.history):
            self.skipTest("flow was built without libedit")
        self.edits = True

    def test_lines_are_edited_and_kept_for_the_next_prompt(self):
        self.needs_editing()
        self.answer("1 + 1" + LEFT + "4", "42")     # 1 + 41
        self.answer(UP + CTRL_A + "100 + ", "142")  # 100 + 1 + 41
        self.answer(UP + UP, "42")
        self.answer("\x1b[6~\x1b[15~#\"é\"", "2")   # keys without a meaning; a character of two bytes
        self.type(CTRL_D)
        self.end()
        self.assertEqual(os.stat(self.history).st_mode & 0o777, 0o600)
        self.open_prompt()
        self.answer(UP + UP + UP, "142")
        self.type(CTRL_D)
        self.end()

    def test_control_c_cancels_a_line_and_a_chunk(self):
        self.needs_editing()
        self.type("nonsense(" + CTRL_C)
        self.until("> ")
        self.type("for i = 1, 2 do\r")
        self.until(">> ")
        self.type("print(i" + CTRL_C)
        self.until("\n> ")
        self.answer("6 * 7", "42")
        self.type(CTRL_D)
        self.end()

    def test_the_history_lies_in_the_state_home(self):
        self.env["XDG_STATE_HOME"] = self.path("states")
        self.history = self.path("states", "flow", "repl_history")
        self.needs_editing()
        self.assertIn("41", self.read(self.history))
        self.assertFalse(os.path.exists(self.path(".local")))
        self.type(CTRL_D)
        self.end()

    def test_help_and_exit(self):
        for word in ("exit", "quit"):
            self.open_prompt()
            self.type("help\r")
            self.until("leave (so does Ctrl-D)")
            self.until("> ")
            self.type("for i = 1, 2 do\r")
            self.until(">> ")
            self.type("print(i * 10) end\r")
            self.until("\r\n10\r\n20\r\n")
            self.until("> ")
            self.type(word + "\r")
            self.end()

    def test_a_variable_wins_over_a_word(self):
        self.open_prompt()
        self.type("help = 7\r")
        self.until("> ")
        self.answer("help", "7")
        self.type("exit\r")
        self.end()

    def test_a_pipe_has_no_prompt_and_no_words(self):
        done = subprocess.run([OPTIONS.flow, "repl"], input="1 + 1\nfor i = 1, 2 do\nprint(i)\nend\nexit\nhelp\n", text=True,
                              capture_output=True, cwd=self.folder, env=self.env, timeout=WAIT_SECONDS_MAX)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, "2\n1\n2\nerror: repl:1: `exit` is not defined\nerror: repl:1: `help` is not defined\n")
        self.assertFalse(os.path.exists(self.history))


if __name__ == "__main__":
    main()
