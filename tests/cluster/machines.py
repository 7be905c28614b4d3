"""Simulated machines for tests: each is a network namespace on a bridge in the head's namespace.
Workers have process namespaces too: ranks on two machines share no memory and connect over the
network."""
import random
import shutil
import subprocess
import sys

import cluster_place
from cluster_place import place

APART = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
NOBODY = "02:00:00:00:00:99"  # frames to it are lost without an error


def ip(*words):
    subprocess.run(["ip", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


class Machines:
    """Network namespaces with one address each, removed by close()."""

    def __init__(self):
        self.prefix = "flow%x" % random.getrandbits(28)
        self.net = "10.%d.%d" % (random.randrange(200, 250), random.randrange(250))
        self.names = []
        try:
            self.add("head")
            ip("-n", self.of("head"), "link", "add", "bridge", "type", "bridge")
            self.up("head", "bridge", 1)
        except BaseException:
            self.close()
            raise

    def of(self, name):
        return self.prefix + name

    def address(self, name):
        return "%s.%d" % (self.net, self.names.index(name) + 1)

    def add(self, name):
        ip("netns", "add", self.of(name))
        self.names.append(name)
        ip("-n", self.of(name), "link", "set", "lo", "up")

    def up(self, name, device, number):
        ip("-n", self.of(name), "addr", "add", "%s.%d/24" % (self.net, number), "dev", device)
        ip("-n", self.of(name), "link", "set", device, "up")

    def join(self, name):
        self.add(name)
        ip("-n", self.of("head"), "link", "add", "to-" + name, "type", "veth", "peer", "name", "net", "netns", self.of(name))
        ip("-n", self.of("head"), "link", "set", "to-" + name, "master", "bridge", "up")
        self.up(name, "net", self.names.index(name) + 1)

    def device(self, name):
        return "bridge" if name == "head" else "net"

    def ipv6(self, name):
        return "fd77::%d" % (self.names.index(name) + 1)

    def add_ipv6(self, name):
        ip("-n", self.of(name), "addr", "add", self.ipv6(name) + "/64", "dev", self.device(name), "nodad")

    def drop_ipv4(self, name):
        ip("-n", self.of(name), "-4", "addr", "flush", "dev", self.device(name))

    def ends(self, name, other):
        return [(at, self.device(at), to) for at, to in ((name, other), (other, name))]

    def cut(self, name, other="head"):
        """Drops all packets in both directions."""
        for at, device, to in self.ends(name, other):
            ip("-n", self.of(at), "neigh", "replace", self.address(to), "lladdr", NOBODY, "dev", device, "nud", "permanent")

    def heal(self, name, other="head"):
        for at, device, to in self.ends(name, other):
            # The entry may have expired, like any other.
            subprocess.run(["ip", "-n", self.of(at), "neigh", "del", self.address(to), "dev", device], stderr=subprocess.DEVNULL)

    def slow(self, name, rate, is_out=True):
        """Limits what it sends and receives; false if this kernel cannot."""
        at, device = (name, "net") if is_out else ("head", "to-" + name)
        words = ["tc", "-n", self.of(at), "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
        return shutil.which("tc") is not None and subprocess.run(words, stderr=subprocess.DEVNULL).returncode == 0

    def close(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", self.of(name)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class MachinesPlace(cluster_place.ClusterPlace):
    def setUp(self):
        super().setUp()
        self.machines = Machines()
        self.addCleanup(self.machines.close)
        self.address = self.machines.address("head")

    def start_on(self, machine, *words):
        if machine not in self.machines.names:
            self.machines.join(machine)
        apart = APART if words[0] == "worker" else []
        return self.start(*words, before=["ip", "netns", "exec", self.machines.of(machine), *apart])


def skip(why):
    print("skipped: network namespaces can't be made here: %s" % why)
    sys.exit(77)


def main():
    """Runs the tests, or prints why they are skipped."""
    if shutil.which("ip") is None:
        skip("there is no `ip`: install iproute2")
    trial = None
    try:
        trial = Machines()
        trial.join("a")
        subprocess.run([*APART, "true"], check=True, stderr=subprocess.PIPE)
    except (subprocess.CalledProcessError, OSError) as error:
        skip((getattr(error, "stderr", b"") or str(error).encode()).decode().strip())
    finally:
        if trial:
            trial.close()
    place.main()
