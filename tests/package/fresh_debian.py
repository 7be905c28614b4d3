"""A fresh Debian in a folder: the release of this machine, from the archives that its apt uses."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

NO_NETWORK = re.compile(r"^.*(?:Temporary failure resolving|Could not (?:resolve|connect)|Unable to connect|Connection (?:failed|refused|timed out)"
                        r"|Network is unreachable|Connection reset|50[234] +[A-Z]).*$", re.MULTILINE)
# Runs a command inside, in a mount namespace of its own: its mounts end with it.
INSIDE = """set -e
root=$1 user=$2
shift 2
for folder in proc sys dev; do mount --rbind "/$folder" "$root/$folder"; done
exec chroot --userspec="$user" "$root" "$@"
"""
STATE_OF_APT = ("var/lib/apt", "var/lib/dpkg", "var/cache", "var/log", "etc/ld.so.cache", "home", "tmp", "proc", "sys", "dev", "run")
USER = 1234


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, errors="replace", **options)


def release():
    """The code name of this machine's Debian."""
    path = pathlib.Path("/etc/os-release")
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', path.read_text(), re.MULTILINE)) if path.exists() else {}
    if fields.get("ID") != "debian":
        skip("this machine is not Debian")
    return fields["VERSION_CODENAME"]


def require():
    """Skips the test if this machine cannot make a fresh Debian."""
    if os.geteuid() != 0:
        skip("making a Debian in a folder needs root")
    for tool in ("mmdebstrap", "apt-get", "dpkg-shlibdeps", "file"):
        if shutil.which(tool) is None:
            skip(f"{tool} is not installed (Debian: mmdebstrap dpkg-dev file)")
    if run(["unshare", "--mount", "true"]).returncode != 0:
        skip("no mount can be made here")


def archives(name):
    """Lines of a sources.list: the archives of the release that apt uses here."""
    form = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)"
    said = run(["apt-get", "indextargets", "--format", form, "Identifier: Packages"]).stdout
    lines = set()
    for line in said.splitlines():
        address, suite, component, origin = line.split("|")
        if component == "main" and suite in (name, f"{name}-updates", f"{name}-security") and origin in ("Debian", "", "$(ORIGIN)"):
            lines.add(f"deb {address} {suite} main")
    if not lines:
        skip("apt has no archive of Debian here")
    return sorted(lines)


def settings():
    """How apt downloads here, such as by a proxy."""
    lines = run(["apt-config", "dump", "Acquire"]).stdout.splitlines()
    return [line for line in lines if not line.endswith(' "";') and not re.match(r"Acquire::(IndexTargets|CompressionTypes|Changelogs|cdrom)", line)]


class FreshDebian:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.root = self.folder / "root"
        self.make()
        self.copy_of_this_machine()
        (self.root / "home/user").mkdir(parents=True)
        os.chown(self.root / "home/user", USER, USER)
        with open(self.root / "etc/passwd", "a") as file:
            file.write(f"user:x:{USER}:{USER}::/home/user:/bin/bash\n")

    def make(self):
        name = release()
        options = self.folder / "apt.conf"
        options.write_text("\n".join(settings()) + "\n")
        done = run(["mmdebstrap", "--variant=apt", "--mode=root", f"--aptopt={options}", "--dpkgopt=force-unsafe-io", name, str(self.root),
                    *archives(name)], cwd=self.folder)
        if done.returncode != 0:
            unreachable = NO_NETWORK.search(done.stderr)
            if unreachable:
                skip(f"Debian's archive cannot be reached: {unreachable[0].strip()}")
            sys.exit(f"mmdebstrap exits with {done.returncode}\n{done.stderr}")

    def copy_of_this_machine(self):
        """Names and certificates that reaching the archives may need."""
        paths = ["/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"]
        paths += re.findall(r'"(/[^"]+)"', "\n".join(settings()))
        for path in paths:
            if os.path.isfile(path):
                target = self.root / path.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)

    def run(self, *words, user=0, **environment):
        home = "/home/user" if user else "/root"
        passed = {name: value for name, value in os.environ.items() if name.lower() in ("http_proxy", "https_proxy", "no_proxy")}
        done = run(["unshare", "--mount", "sh", "-c", INSIDE, "sh", str(self.root), f"{user}:{user}", "env", f"--chdir={home}", *words],
                   env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": home, "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive",
                        **passed, **environment}, stdin=subprocess.DEVNULL)
        return done

    def good(self, *words, **options):
        done = self.run(*words, **options)
        if done.returncode != 0:
            unreachable = words[0] == "apt-get" and NO_NETWORK.search(done.stderr)
            if unreachable:
                skip(f"Debian's archive cannot be reached: {unreachable[0].strip()}")
            sys.exit(f"{' '.join(words)} exits with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def paths(self):
        """All files and folders but those in which apt and dpkg keep what they did."""
        found = set()
        for folder, names, files in os.walk(self.root):
            place = os.path.relpath(folder, self.root)
            names[:] = [name for name in names if os.path.normpath(f"{place}/{name}") not in STATE_OF_APT]
            found.update(os.path.normpath(f"{place}/{name}") for name in names + files)
        return found.difference(STATE_OF_APT)


def remove(folder):
    """Removes the folder of a fresh Debian, unless something is still mounted there."""
    if str(folder) in pathlib.Path("/proc/self/mountinfo").read_text():
        sys.exit(f"{folder} still has mounts: it is not removed")
    shutil.rmtree(folder)
