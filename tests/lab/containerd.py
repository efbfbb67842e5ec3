"""Debian's containerd and runc on a node of their own, driven through the CRI socket.

    with containerd(directory, built, chain=[entry]) as runtime:
        sandbox = runtime.cri.run_pod("web")
        runtime.cri.run_container(sandbox, "app", "serve", 8080)

Pods get addresses from `SUBNET` by the CNI plugins ptp and host-local; `chain` holds the plugins after them.
"""

import contextlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.lab.cri import ASK, BOX, Cri
from tests.lab.images import PAUSE, Built
from tests.lab.node import Node

SUBNET = "10.88.0.0/16"
PLUGINS = Path("/usr/lib/cni")
"""Where Debian keeps the CNI plugins."""

READY = 20.0
"""Seconds in which the runtime must answer."""

JSON = dict[str, Any]

_CONFIG = """\
version = 2
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{confs}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


class Containerd:
    """A node with containerd on it; everything that it keeps is below `directory`, whose path must be short.

    `plugins` and `confs` are the CNI directories, as /opt/cni/bin and /etc/cni/net.d are elsewhere.
    """

    def __init__(self, directory: Path, built: Built, chain: Sequence[JSON] = ()) -> None:
        self.directory = directory
        self.plugins = directory / "plugins"
        self.confs = directory / "confs"
        self.conflist = self.confs / "10-lab.conflist"
        self.log = directory / "containerd.log"
        self._built = built
        self._socket = directory / "c.sock"
        self._process: subprocess.Popen[bytes] | None = None
        for each in (self.plugins, self.confs):
            each.mkdir()
        for name in ("loopback", "ptp", "host-local"):
            self.add_plugin(PLUGINS / name)
        self.add_plugin(built.record)
        self.write_chain(chain)
        self.node = Node()
        self.cri = Cri(self._socket, cgroup=self.node.cgroup, logs=directory / "logs")

    @property
    def prefix(self) -> tuple[str, ...]:
        """Words before a command that shall run on the node, such as the agent's."""
        return self.node.prefix

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def add_plugin(self, program: Path, name: str = "") -> Path:
        """Let the runtime find `program` as a CNI plugin, as a file of its own; returns its path."""
        plugin = self.plugins / (name or program.name)
        # A link would share the file with others, and be one that cannot be written while it runs.
        shutil.copy(program, plugin)
        return plugin

    def write_chain(self, chain: Sequence[JSON], name: str = "lab") -> None:
        """Replace the conflist, at once: ptp and `chain`. The runtime takes a moment to notice."""
        ipam = {
            "type": "host-local",
            "ranges": [[{"subnet": SUBNET}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(self.directory / "addresses"),
        }
        ptp = {"type": "ptp", "ipMasq": False, "ipam": ipam}
        conflist = {"cniVersion": "1.0.0", "name": name, "plugins": [ptp, *chain]}
        # In the same directory: containerd heeds no file that is moved in from another one.
        temporary = self.conflist.with_suffix(".new")
        temporary.write_text(json.dumps(conflist, indent=2))
        temporary.rename(self.conflist)

    def start(self) -> "Containerd":
        """Start containerd and wait until pods can be run. The images are there from the first time on."""
        config = self.directory / "config.toml"
        config.write_text(
            _CONFIG.format(
                directory=self.directory,
                socket=self._socket,
                pause=PAUSE,
                plugins=self.plugins,
                confs=self.confs,
            )
        )
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.prefix, "containerd", "--config", str(config)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._wait(self.cri.ready, "readiness")
        if not {PAUSE, BOX, ASK} <= set(self.cri.images()):
            self._import()
        return self

    def stop(self) -> int:
        """SIGTERM and wait for its end; pods go on. Returns the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(10)

    def kill(self) -> None:
        """SIGKILL; pods go on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Stop and start; pods go on."""
        self.stop()
        self.start()

    def end_pod(self, sandbox: str) -> None:
        """Remove a pod and then its cgroup, in the kubelet's order."""
        uid = self.cri.pod(sandbox).uid
        self.cri.remove_pod(sandbox)
        self.node.remove_cgroup(f"kubepods/besteffort/pod{uid}")

    def netns(self, sandbox: str) -> str:
        """A path of the pod's network namespace that `tests.lab.netns` can enter from outside the node."""
        return str(self.node.seen(self.cri.pod(sandbox).netns))

    def close(self) -> None:
        """End all pods and the node, and remove all that containerd kept; logs stay."""
        self.cri.close()
        self.node.close()
        if self._process is not None:
            self._process.wait()
        for each in ("root", "state", "opt", "addresses", "plugins"):
            shutil.rmtree(self.directory / each, ignore_errors=True)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])

    def _import(self) -> None:
        ctr = ("ctr", "--address", str(self._socket), "--namespace", "k8s.io")
        self.node.run(*ctr, "images", "import", str(self._built.images))
        # The CRI hears of images by events.
        self._wait(lambda: {PAUSE, BOX, ASK} <= set(self.cri.images()), "images")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + READY
        while not condition():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                status, trouble = self._process.returncode, self.cri.trouble()
                raise AssertionError(f"no {what} of containerd ({status}): {trouble}\n{self.tail()}")
            time.sleep(0.01)


@contextlib.contextmanager
def containerd(directory: Path, built: Built, chain: Sequence[JSON] = ()) -> Iterator[Containerd]:
    """A containerd that runs, and that leaves nothing."""
    runtime = Containerd(directory, built, chain)
    with contextlib.closing(runtime):
        yield runtime.start()
