#!/usr/bin/env python3
"""The live display on a real pseudo-terminal: drawn in place, wiped at the end, cursor restored, and
Ctrl-C ends a waiting run with exit code 3."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time


def output_of(master, until, key):
    """What is printed until the terminal closes, for at most a minute. Presses `key` once `until` has been printed."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    out, asked, deadline = b"", False, time.monotonic() + 60
    while time.monotonic() < deadline:
        ready, _, _ = select.select([master], [], [], 1)
        if not ready:
            continue
        try:
            chunk = os.read(master, 65536)
        except OSError:
            break
        if not chunk:
            break
        out += chunk
        if until and not asked and until in out:
            os.write(master, key)
            asked = True
    return out.decode()


def run(program, script, until):
    pid, master = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(program, [program, "run", script])
    out = output_of(master, until, b"\x03")
    _, status = os.waitpid(pid, 0)
    return out, os.waitstatus_to_exitcode(status)


def in_background(program, script):
    """Ctrl-Z, then `bg`, then SIGINT: what it printed before and after it stopped, and its exit code."""
    shell, master = pty.fork()
    if shell == 0:
        # A shell with job control, reduced to what it does for one job.
        os.environ["TERM"] = "xterm"
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        job = os.fork()
        if job == 0:
            os.setpgid(0, 0)
            os.tcsetpgrp(0, os.getpid())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            os.execv(program, [program, "run", script])
        os.waitpid(job, os.WUNTRACED)
        os.tcsetpgrp(0, os.getpgrp())
        os.write(1, b"IS-STOPPED")
        os.kill(job, signal.SIGCONT)
        time.sleep(0.5)  # several frames of a job in the foreground
        os.kill(job, signal.SIGINT)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(job, 0)[1]))
    out = output_of(master, b"1 waiting", b"\x1a")
    code = os.waitstatus_to_exitcode(os.waitpid(shell, 0)[1])
    before, _, after = out.partition("IS-STOPPED")
    return before, after, code


def check(condition, what, out):
    if not condition:
        print(f"failed: {what}\n{out!r}")
        sys.exit(1)


def main():
    program = sys.argv[1]
    folder = os.path.dirname(os.path.abspath(program))
    for name in ("waits", "serves"):
        script = os.path.join(folder, name + ".lua")
        open(script, "w").close()
        out, code = run(program, script, b"1 waiting" if name == "waits" else b"1/1 done")
        check("\x1b[?25l" in out and out.rfind("\x1b[?25h") > out.rfind("\x1b[?25l"), "the cursor comes back", out)
        check(re.search("\x1b\\[\\d+A", out) and "\x1b[K" in out, "the frame is drawn in place", out)
        check(not re.search("(?<!\n)\x1b\\[J", out), "the screen is not erased from the frame's top", out)
        if name == "waits":
            check("waits for the signal `approved`" in out, "the wait is shown", out)
            check("stopping: running tasks have 10.0s to save" in out, "Ctrl-C is answered", out)
            check(code == 3, f"exit 3, not {code}", out)
        else:
            check("serves at http://127.0.0.1:8080" in out, "the address is shown", out)
            check(code == 0, f"exit 0, not {code}", out)
        for line in out.split("\n"):
            shown = line.replace("\r", "")
            check("\x1b[" in shown or len(shown) < 200, "no line is endless", out)
    before, after, code = in_background(program, os.path.join(folder, "waits.lua"))
    check(before.rfind("\x1b[?25h") > before.rfind("\x1b[?25l") >= 0, "the cursor comes back on Ctrl-Z", before)
    check("stopping: running tasks" in after, "the job continues in the background", after)
    check("\x1b[?25l" not in after and not re.search("\x1b\\[\\d+A", after), "a background job draws no frame", after)
    check(code == 3, f"exit 3, not {code}", after)
    print("the display is drawn, wiped and left as it was")


if __name__ == "__main__":
    main()
