"""A place with a server of tmux, whose name is in `server`."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place  # noqa: E402


class TmuxPlace(Place):
    def tmux(self, *words):
        env = dict(self.env, TMUX_TMPDIR=self.env["TMPDIR"], TERM="xterm", LANG="C.UTF-8", LC_ALL="C.UTF-8")
        env.pop("TMUX", None)
        done = subprocess.run(["tmux", "-L", self.server, "-f", "/dev/null", *words], cwd=self.folder, env=env,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def end_tmux(self):
        subprocess.run(["tmux", "-L", self.server, "kill-server"], env=dict(self.env, TMUX_TMPDIR=self.env["TMPDIR"]),
                       stderr=subprocess.DEVNULL)
