"""A real Slurm of four nodes on this machine, for a test: all its files are in one folder, it
listens on this machine only, and its processes are ended by their ids."""
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time

import place

PROGRAMS = ["munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "salloc", "sinfo"]
NODES = ["n1", "n2", "n3", "n4"]
GPUS = 2  # per node: Slurm accepts any device as a GPU
LOOPBACK = "127.0.0.1"
WAIT_SECONDS_MAX = 40


def path_with_sbin():
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def missing():
    return [name for name in PROGRAMS if shutil.which(name, path=path_with_sbin()) is None]


def own_address():
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""


def why_not():
    """Why it cannot run here, or ""."""
    if missing():
        return "not installed: %s (Debian: slurmctld slurmd slurm-client munge)" % " ".join(missing())
    if own_address() != LOOPBACK:  # the address of srun, to which its peers connect
        return "this machine's name stands for `%s`: Slurm would have to listen beyond %s" % (own_address(), LOOPBACK)
    return ""


class Controller:
    def __init__(self, folder):
        self.folder = folder
        self.conf = os.path.join(folder, "slurm.conf")
        self.pids = []
        host = socket.gethostname()
        user = getpass.getuser()
        ports = set()
        while len(ports) < 1 + len(NODES):
            ports.add(place.unused_port())
        ports = list(ports)
        for name in ("munge", "spool", "log", "state"):
            os.makedirs(os.path.join(folder, name), mode=0o700)
        lines = [
            "ClusterName=flowtest", "SlurmctldHost=%s(%s)" % (host, LOOPBACK), "SlurmUser=" + user, "SlurmdUser=" + user,
            "AuthType=auth/munge", "CredType=cred/munge", "AuthInfo=socket=%s/munge/socket" % folder,
            "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny", "SlurmctldPort=%d" % ports[0],
            "SlurmctldPidFile=%s/slurmctld.pid" % folder, "SlurmctldLogFile=%s/log/slurmctld" % folder,
            "SlurmdSpoolDir=%s/spool/%%n" % folder, "SlurmdPidFile=%s/slurmd-%%n.pid" % folder,
            "SlurmdLogFile=%s/log/slurmd-%%n" % folder, "StateSaveLocation=%s/state" % folder,
            "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none", "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core_Memory", "SlurmdParameters=config_overrides", "MpiDefault=none",
            "PreemptType=preempt/partition_prio", "PreemptMode=CANCEL", "KillWait=5", "SlurmdTimeout=10",
            "ReturnToService=2", "GresTypes=gpu", "NodeName=DEFAULT CPUs=2 CoresPerSocket=2 RealMemory=2000 Gres=gpu:%d" % GPUS]
        for name, port in zip(NODES, ports[1:]):
            lines.append("NodeName=%s NodeHostname=%s NodeAddr=%s Port=%d" % (name, host, LOOPBACK, port))
        lines += ["PartitionName=low Nodes=n[1-4] PriorityTier=1 Default=YES MaxTime=60 GraceTime=5",
                  "PartitionName=high Nodes=n[1-4] PriorityTier=10 MaxTime=60 PreemptMode=OFF"]
        self.write("slurm.conf", "\n".join(lines) + "\n")
        for i in range(GPUS):
            os.symlink(os.devnull, os.path.join(folder, "gpu%d" % i))
        self.write("gres.conf", "NodeName=n[1-%d] Name=gpu File=%s/gpu[0-%d]\n" % (len(NODES), folder, GPUS - 1))
        self.write("cgroup.conf", "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        self.env = dict(os.environ, SLURM_CONF=self.conf, PATH=path_with_sbin())
        for name in [name for name in self.env if name.startswith("SLURM_") and name != "SLURM_CONF"]:
            del self.env[name]

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w") as file:
            file.write(text)

    def start(self):
        key = os.path.join(self.folder, "munge", "key")
        with open(key, "wb") as file:
            file.write(os.urandom(1024))
        os.chmod(key, 0o600)
        inside = lambda name: os.path.join(self.folder, "munge", name)
        self.daemon("munged", "--force", "--key-file=" + key, "--socket=" + inside("socket"),
                    "--pid-file=" + inside("pid"), "--log-file=" + inside("log"), "--seed-file=" + inside("seed"))
        self.daemon("slurmctld", "-f", self.conf)
        for name in NODES:
            self.daemon("slurmd", "-f", self.conf, "-N", name)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while self.answer("sinfo", "--noheader", "--format=%T %D", "--partition=low").split() != ["idle", "4"]:
            if time.monotonic() > deadline:
                raise RuntimeError("Slurm did not come up: " + self.answer("sinfo") + self.logs())
            time.sleep(0.2)

    def daemon(self, *words):
        subprocess.run(words, env=self.env, check=True, timeout=WAIT_SECONDS_MAX)

    def answer(self, *words):
        done = subprocess.run(words, env=self.env, timeout=WAIT_SECONDS_MAX, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        return done.stdout

    def jobs(self, *states):
        """Numbers of jobs in these states, or of unfinished jobs, oldest first."""
        words = ["--states=" + ",".join(states)] if states else []
        answer = self.answer("squeue", "--noheader", "--format=%i", *words)
        if "error" in answer:
            raise RuntimeError(answer + self.logs())
        return sorted(int(word) for word in answer.split())

    def logs(self):
        text = ""
        for name in os.listdir(os.path.join(self.folder, "log")):
            with open(os.path.join(self.folder, "log", name), errors="replace") as file:
                text += "\n== %s\n%s" % (name, file.read()[-1500:])
        return text

    def stop(self):
        try:
            self.give_back()
        finally:
            self.end_daemons()

    def give_back(self):
        self.answer("scancel", "--user=" + getpass.getuser())
        deadline = time.monotonic() + 15
        while self.jobs() and time.monotonic() < deadline:
            time.sleep(0.2)

    def end_daemons(self):
        names = ["slurmd-%s.pid" % name for name in NODES] + ["slurmctld.pid", "munge/pid"]
        pids = []
        for name in names:
            try:
                with open(os.path.join(self.folder, name)) as file:
                    pids.append(int(file.read()))
                os.kill(pids[-1], signal.SIGTERM)
            except (OSError, ValueError):
                pass
        deadline = time.monotonic() + 10
        while any(os.path.exists("/proc/%d" % pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
