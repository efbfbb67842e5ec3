"""Checks of this node and of this process: may and can an agent work here?"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from agent.cli.report import Category, Check, failed, passed, warning
from agent.core.ports import PortSet, Subnets
from agent.core.ruleset import render
from agent.core.spec import RedirectSpec
from agent.node.discovery import Scanner
from agent.node.nft.compile import CompileError, Compiler

CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
PTRACE = 19
IMPORT = "import nftables; nftables.Nftables()"
IMPORT_TIMEOUT = 20.0
"""Seconds for a Python process that does nothing but load libnftables."""

SAMPLE = RedirectSpec(
    inbound_port=4143,
    outbound_port=4140,
    proxy_uid=2102,
    proxy_gid=2102,
    skip_inbound=PortSet.of(25, (4567, 4568)),
    proxy_ports=PortSet.of(4190, 4191),
    skip_outbound=PortSet.of(25, (4567, 4568)),
    skip_subnets=Subnets(("10.0.0.0/8",), ("fd00::/8",)),
    only_inbound=PortSet.of(80),
    ipv6=True,
    local_only=True,
)
"""A spec that makes use of everything that rules can do."""


def check_node(proc: Path) -> Category:
    """`proc`: the node's /proc."""
    capabilities = _capabilities()
    checks = (
        _privileges(capabilities),
        _library(),
        *_nf_tables(),
        *_discovery(proc, capabilities),
    )
    return Category("pointsman-node", checks)


def _capabilities() -> int | None:
    """This process's effective capabilities as a bit set, None where they cannot be read."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), None)


def _privileges(capabilities: int | None) -> Check:
    description = "runs as root, with NET_ADMIN and SYS_ADMIN"
    if os.geteuid() != 0:
        return failed(
            description, f"this process runs as user {os.geteuid()}", "run as root: sudo, or runAsUser: 0"
        )
    if capabilities is None:
        return warning(description, "cannot read /proc/self/status", "mount /proc into the container")
    missing = [name for name, bit in CAPABILITIES.items() if not capabilities >> bit & 1]
    if missing:
        return failed(
            description,
            f"missing: {', '.join(missing)}",
            "add them to securityContext.capabilities of the agent's container",
        )
    return passed(description)


def _library() -> Check:
    """In a process of its own, as the agent does it: libnftables may abort the process it is in."""
    description = "libnftables can be loaded"
    hint = "install Debian's python3-nftables for the interpreter that runs pointsman"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", IMPORT],
            env=environment,
            capture_output=True,
            text=True,
            timeout=IMPORT_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return failed(description, f"cannot run {sys.executable}: {error}", hint)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return failed(description, f"{sys.executable}: {last}", hint)
    return passed(description)


def _nf_tables() -> Iterator[Check]:
    description = "nf_tables takes our rules, in a scratch namespace"
    compiler = Compiler()
    try:
        flags = compiler.flags()
        compiler.compile(render(SAMPLE))
    except CompileError as error:
        first = str(error).splitlines()[0]
        yield failed(
            description, first, "needs CAP_SYS_ADMIN and a kernel with nf_tables, NAT and fib for family inet"
        )
        return
    finally:
        compiler.close()
    yield passed(description)
    if flags:
        yield passed("tables can be owned: others cannot flush them (flags owner, persist)")
    else:
        yield passed(f"tables are plain: a foreign flush is repaired ({compiler.reason})")


def _discovery(proc: Path, capabilities: int | None) -> Iterator[Check]:
    description = f"network namespaces of pods can be found in {proc}"
    try:
        scan = Scanner(str(proc)).scan()
    except OSError as error:
        hint = "name the node's procfs with --proc, and give the container hostPID"
        yield failed(description, f"cannot read {proc}: {error.strerror}", hint)
        return
    if scan.denied and not (capabilities or 0) >> PTRACE & 1:
        yield warning(
            description,
            f"{scan.denied} processes may not be read, so pods without a named namespace are not found",
            "add CAP_SYS_PTRACE, or name each pod's namespace with the annotation pointsman.io/netns",
        )
    else:
        yield passed(f"{description} ({len(scan.sandboxes)} pods there)")
    hidden = sorted(uid for uid, one in scan.sandboxes.items() if not one.cgroup)
    if hidden:
        yield warning(
            "cgroups of pods can be seen",
            f"not those of pods with UID {', '.join(hidden[:3])}{' and others' if hidden[3:] else ''}, so "
            "their end is noticed late",
            "mount the node's /sys/fs/cgroup into the agent's container, read-only",
        )
