"""A client of the Container Runtime Interface, as the kubelet is one: pods and containers by RPC.

The messages are made at run time from `cri.proto`, in a descriptor pool of their own, so that nothing else in
the process ever sees another `runtime.v1`.
"""

import functools
import json
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

BOX = "localhost/box:1"
"""Image of containers that do not name another; its entry point is `box`, see `src/box.c`."""

ASK = "localhost/ask:1"
"""Image of containers that ask for destinations; its entry point is `ask`, see `src/ask.c`."""

PROTO = Path(__file__).with_name("cri.proto")
SECONDS = 60.0
"""Deadline of one RPC. The runtime waits for CNI plugins inside of it."""

_OPTIONS = (("grpc.initial_reconnect_backoff_ms", 20), ("grpc.max_reconnect_backoff_ms", 100))


class Refused(Exception):  # noqa: N818
    """The runtime answered with an error; the text is its own."""


class Sandbox(msgspec.Struct, frozen=True):
    """A pod as the runtime sees it: `ip` is "" without a network, `netns` its path in the node's mounts.

    `pid` is that of its first process, 0 when it has none (any more).
    """

    id: str
    name: str
    namespace: str
    uid: str
    ready: bool
    ip: str
    netns: str
    pid: int


class Container(msgspec.Struct, frozen=True):
    """A container: `state` is created, running, exited or unknown; times in ns since the epoch, 0: never."""

    id: str
    name: str
    state: str
    created_at: int
    started_at: int
    finished_at: int
    exit_code: int
    reason: str
    message: str
    log: Path


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    with tempfile.NamedTemporaryFile(suffix=".pb") as compiled:
        arguments = ["protoc", f"--proto_path={PROTO.parent}", f"--descriptor_set_out={compiled.name}"]
        if protoc.main([*arguments, PROTO.name]):
            raise RuntimeError(f"cannot compile {PROTO}: see the compiler's words above")
        files = descriptor_pb2.FileDescriptorSet.FromString(Path(compiled.name).read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


class Cri:
    """A connection to the runtime at `address`, a socket's path. Every method may raise `Refused`.

    Pods get cgroups below `cgroup`, in the kubelet's order; their containers log below `logs`.
    """

    def __init__(self, address: Path, *, cgroup: str, logs: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{address}", options=_OPTIONS)
        self._cgroup = cgroup
        self._logs = logs
        self._configs: dict[str, dict[str, Any]] = {}

    def close(self) -> None:
        self._channel.close()

    def ready(self) -> bool:
        """Whether the runtime answers, with a network configuration that it has accepted."""
        return self.trouble() == ""

    def trouble(self) -> str:
        """Why no pod can be run now, "" when there is no reason."""
        try:
            conditions = self._call("Status", patience=1).status.conditions
        except Refused as error:
            return str(error)
        return "; ".join(f"{each.type}: {each.message}" for each in conditions if not each.status)

    def images(self) -> list[str]:
        """Names of the images that can be run."""
        answer = self._call("ListImages", service="ImageService")
        return [tag for image in answer.images for tag in image.repo_tags]

    def run_pod(
        self,
        name: str,
        namespace: str = "default",
        uid: str | None = None,
        annotations: Mapping[str, str] | None = None,
        cgroup_parent: str | None = None,
        *,
        attempt: int = 0,
        host_network: bool = False,
    ) -> str:
        """Make and start a sandbox, through the CNI chain; returns its id. A `uid` of None is a new one."""
        uid = uid or str(uuid.uuid4())
        parent = cgroup_parent or f"{self._cgroup}/kubepods/besteffort/pod{uid}"
        logs = self._logs / f"{namespace}_{name}_{uid}"
        logs.mkdir(parents=True, exist_ok=True)
        options = {"network": "NODE" if host_network else "POD", "pid": "CONTAINER"}
        config = {
            "metadata": {"name": name, "uid": uid, "namespace": namespace, "attempt": attempt},
            "hostname": "" if host_network else name,
            "log_directory": str(logs),
            "annotations": dict(annotations or {}),
            "linux": {
                "cgroup_parent": parent,
                "security_context": {"namespace_options": options},
            },
        }
        sandbox: str = self._call("RunPodSandbox", config=config).pod_sandbox_id
        self._configs[sandbox] = config
        return sandbox

    def stop_pod(self, sandbox: str) -> None:
        """Stop all containers and take the network down, through the CNI chain. May be repeated."""
        self._call("StopPodSandbox", pod_sandbox_id=sandbox)

    def remove_pod(self, sandbox: str) -> None:
        """Stop the sandbox and forget it. May be repeated."""
        self.stop_pod(sandbox)
        self._call("RemovePodSandbox", pod_sandbox_id=sandbox)
        self._configs.pop(sandbox, None)

    def pod(self, sandbox: str) -> Sandbox:
        """Status of one sandbox."""
        answer = self._call("PodSandboxStatus", pod_sandbox_id=sandbox, verbose=True)
        status, info = answer.status, json.loads(answer.info["info"])
        namespaces = ((info.get("runtimeSpec") or {}).get("linux") or {}).get("namespaces", [])
        return Sandbox(
            id=status.id,
            name=status.metadata.name,
            namespace=status.metadata.namespace,
            uid=status.metadata.uid,
            ready=status.state == 0,
            ip=status.network.ip,
            netns=next((each.get("path", "") for each in namespaces if each["type"] == "network"), ""),
            pid=info.get("pid", 0),
        )

    def pods(self) -> list[str]:
        """Ids of all sandboxes, stopped ones included."""
        return [each.id for each in self._call("ListPodSandbox").items]

    def create_container(
        self,
        sandbox: str,
        name: str,
        *arguments: object,
        uid: int = 0,
        env: Mapping[str, str] | None = None,
        image: str = BOX,
        attempt: int = 0,
    ) -> str:
        """A container that does not run yet; returns its id. `arguments` are those of the image's program."""
        pod = self._configs[sandbox]
        options = pod["linux"]["security_context"]["namespace_options"]
        config = {
            "metadata": {"name": name, "attempt": attempt},
            "image": {"image": image},
            "args": [str(each) for each in arguments],
            "envs": [{"key": key, "value": value} for key, value in (env or {}).items()],
            "log_path": f"{name}-{attempt}.log",
            "linux": {"security_context": {"namespace_options": options, "run_as_user": {"value": uid}}},
        }
        answer = self._call("CreateContainer", pod_sandbox_id=sandbox, config=config, sandbox_config=pod)
        created: str = answer.container_id
        return created

    def start_container(self, container: str) -> None:
        self._call("StartContainer", container_id=container)

    def run_container(self, sandbox: str, name: str, *arguments: object, **options: Any) -> str:
        """Create and start; takes what `create_container` takes."""
        container = self.create_container(sandbox, name, *arguments, **options)
        self.start_container(container)
        return container

    def stop_container(self, container: str, timeout: int = 1) -> None:
        """SIGTERM, and SIGKILL after `timeout` seconds."""
        self._call("StopContainer", container_id=container, timeout=timeout)

    def remove_container(self, container: str) -> None:
        self._call("RemoveContainer", container_id=container)

    def container(self, container: str) -> Container:
        """Status of one container."""
        status = self._call("ContainerStatus", container_id=container).status
        return Container(
            id=status.id,
            name=status.metadata.name,
            state=("created", "running", "exited", "unknown")[status.state],
            created_at=status.created_at,
            started_at=status.started_at,
            finished_at=status.finished_at,
            exit_code=status.exit_code,
            reason=status.reason,
            message=status.message,
            log=Path(status.log_path),
        )

    def containers(self, sandbox: str) -> list[str]:
        """Ids of all containers of a sandbox, ended ones included."""
        answer = self._call("ListContainers", filter={"pod_sandbox_id": sandbox})
        return [each.id for each in answer.containers]

    def said(self, container: str) -> list[str]:
        """What a container has written so far, line by line."""
        log = self.container(container).log
        # Each line is "TIME STREAM F TEXT".
        return [line.split(" ", 3)[3] for line in log.read_text().splitlines()] if log.exists() else []

    def wait_said(self, container: str, text: str, seconds: float = 5.0) -> None:
        """Until a container has written the line `text`; AssertionError when it is not in time."""
        deadline = time.monotonic() + seconds
        while text not in self.said(container):
            assert time.monotonic() < deadline, f"no {text!r} in {seconds} s, only {self.said(container)}"
            time.sleep(0.01)

    def wait_exited(self, container: str, seconds: float = 10.0) -> Container:
        """Until a container has ended; AssertionError when it is not in time."""
        deadline = time.monotonic() + seconds
        while (status := self.container(container)).state != "exited":
            assert time.monotonic() < deadline, f"{status.name} still {status.state} after {seconds} s"
            time.sleep(0.01)
        return status

    def _call(
        self, method: str, *, service: str = "RuntimeService", patience: float = SECONDS, **fields: Any
    ) -> Any:
        descriptor = _pool().FindServiceByName(f"runtime.v1.{service}").methods_by_name[method]
        request, response = map(
            message_factory.GetMessageClass, (descriptor.input_type, descriptor.output_type)
        )
        call = self._channel.unary_unary(
            f"/runtime.v1.{service}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        try:
            return call(request(**fields), timeout=patience)
        except grpc.RpcError as error:
            raise Refused(f"cannot {method}: {error.details()}") from error
