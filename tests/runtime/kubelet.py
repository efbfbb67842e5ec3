"""The kubelet's part: pods by the runtime and the agent's source, their containers in order."""

import contextlib
import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.lab.agent import JSON, Agent, pod_manifest
from tests.lab.containerd import Containerd, containerd
from tests.lab.images import Built
from tests.lab.netns import run

PROXY_UID = 2102
PORT = 8080
"""Where applications listen."""


class Pod(msgspec.Struct, frozen=True):
    """A pod that has its sandbox; `netns` is a path that can be entered from outside the node."""

    name: str
    namespace: str
    uid: str
    sandbox: str
    ip: str
    netns: str
    manifest: JSON

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def rules(self) -> str:
        """Our table in the pod's network namespace, with handles; "" when there is none."""
        command = ["nft", "-a", "list", "table", "inet", "pointsman"]
        done = subprocess.run(
            ["nsenter", f"--net={self.netns}", *command], capture_output=True, text=True, check=False
        )
        return done.stdout

    @property
    def redirected(self) -> bool:
        return "redirect to :4140" in self.rules()

    def handles(self) -> list[str]:
        """Lines of all objects with a handle, without the owner's name: the same while nothing is remade."""
        lines = self.rules().splitlines()
        return [line.split(" progname")[0].strip() for line in lines if "# handle" in line]


class Kubelet:
    """Starts pods on `runtime`, and tells them to `agent` by manifests."""

    def __init__(self, runtime: Containerd, agent: Agent) -> None:
        self.runtime = runtime
        self.cri = runtime.cri
        self.agent = agent

    def pod(
        self,
        name: str,
        namespace: str = "default",
        *,
        meshed: bool = True,
        known: bool = True,
        annotations: JSON | None = None,
        host_network: bool = False,
        uid: str = "",
        **spec: Any,
    ) -> Pod:
        """A sandbox, whose manifest was there before (`known`) or is yet to come. Raises Refused."""
        uid = uid or str(uuid.uuid4())
        if host_network:
            spec["hostNetwork"] = True
        manifest = pod_manifest(
            name, uid=uid, namespace=namespace, meshed=meshed, annotations=annotations, **spec
        )
        if known:
            self.agent.put(manifest)
        sandbox = self.cri.run_pod(name, namespace, uid, annotations, host_network=host_network)
        status = self.cri.pod(sandbox)
        manifest["status"] = {"phase": "Running", "podIPs": [{"ip": status.ip}] if status.ip else []}
        pod = Pod(
            name=name,
            namespace=namespace,
            uid=uid,
            sandbox=sandbox,
            ip=status.ip,
            netns=str(self.runtime.node.seen(status.netns)) if status.netns else "",
            manifest=manifest,
        )
        if known:
            self.tell(pod)
        return pod

    def tell(self, pod: Pod) -> None:
        """Let the agent's source know the pod, with its address."""
        self.agent.put(pod.manifest)

    def proxy(self, pod: Pod) -> str:
        """Start the proxy, and wait until it listens."""
        return self._ready(
            self.cri.run_container(pod.sandbox, "linkerd-proxy", "proxy", 4143, 4140, uid=PROXY_UID)
        )

    def serve(self, pod: Pod) -> str:
        """Start an application that listens on PORT, and wait until it does."""
        return self._ready(self.cri.run_container(pod.sandbox, "app", "serve", PORT))

    def connect(self, pod: Pod, there: Pod, name: str = "client") -> list[str]:
        """The route of a connection that a container's first action makes: what it wrote."""
        client = self.cri.run_container(pod.sandbox, name, "connect", there.ip, PORT)
        self.cri.wait_exited(client)
        return self.cri.said(client)

    def server(self, name: str, **given: Any) -> Pod:
        """A pod with a proxy, where it is meshed, and an application that listens."""
        pod = self.pod(name, **given)
        if given.get("meshed", True):
            self.proxy(pod)
        self.serve(pod)
        return pod

    def end(self, pod: Pod) -> None:
        """Stop and remove the pod, then its object."""
        self.runtime.end_pod(pod.sandbox)
        self.agent.drop(pod.manifest)

    def call_plugin(self, environment: dict[str, str]) -> str:
        """Call our plugin on the node as a runtime does; returns its answer. RuntimeError when it refuses."""
        variables = [f"{key}={value}" for key, value in environment.items()]
        conf = {"cniVersion": "1.0.0", "name": "by-hand", **entry(self.agent.directory)}
        command = [*self.runtime.prefix, "env", *variables, str(self.runtime.plugins / "pointsman-cni")]
        return run(*command, script=json.dumps(conf))

    def _ready(self, container: str) -> str:
        self.cri.wait_said(container, "ready")
        return container


def entry(agent_dir: Path, **settings: Any) -> JSON:
    """Our entry in a chain, for the agent of this directory."""
    return {
        "type": "pointsman-cni",
        "socket": str(agent_dir / "run/cni.sock"),
        "capabilities": {"io.kubernetes.cri.pod-annotations": True},
        **settings,
    }


@contextlib.contextmanager
def kubelet(place: Path, built: Built, shim: Path, *flags: str, **settings: Any) -> Iterator[Kubelet]:
    """A node with a runtime, our plugin in its chain, and an agent that is not started yet.

    `flags` are those of `pointsman run`, `settings` those of our entry.
    """
    home = place / "agent"
    home.mkdir()
    with containerd(place, built, [entry(home, **settings)]) as runtime:
        runtime.add_plugin(shim)
        one = Agent(home, *flags, prefix=runtime.prefix)
        with contextlib.closing(one):
            yield Kubelet(runtime, one)


def wait(condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
    """Until `condition` is true; AssertionError when it is not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} in {seconds} s"
        time.sleep(0.02)
