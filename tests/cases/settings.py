"""Compare the settings that were derived with those that a case expects."""

from collections.abc import Iterator
from typing import Any

import msgspec

from agent.core.ports import PortSet
from agent.core.spec import RedirectSpec
from tests.cases.model import Effective

_SHOWN = 12


def differences(wanted: Effective, spec: RedirectSpec) -> list[str]:
    """One sentence per setting that is not as wanted. Order and form of lists do not matter.

    The proxy's own ports are skipped in any case, so it does not matter either whether a list repeats them.
    """
    proxy_ports = _ports(spec.proxy_ports)
    have: dict[str, Any] = {
        "inbound": spec.inbound_port,
        "outbound": spec.outbound_port,
        "in_base": proxy_ports,
        "in_skip": _ports(spec.skip_inbound) - proxy_ports,
        "out_skip": _ports(spec.skip_outbound),
        "subnets": frozenset((*spec.skip_subnets.v4, *spec.skip_subnets.v6)),
        "ipv6": spec.ipv6,
        "uid": spec.proxy_uid,
        "gid": spec.proxy_gid,
        "listed": None if spec.only_inbound is None else _ports(spec.only_inbound),
        "local_only": spec.local_only,
    }
    return list(_sentences(msgspec.structs.replace(wanted, in_skip=wanted.in_skip - wanted.in_base), have))


def _sentences(wanted: Effective, have: dict[str, Any]) -> Iterator[str]:
    for name, value in have.items():
        want = getattr(wanted, name)
        if isinstance(want, frozenset) and isinstance(value, frozenset):
            if missing := want - value:
                yield f"{name} lacks {_few(missing)}"
            if extra := value - want:
                yield f"{name} has {_few(extra)} too many"
        elif want != value:
            yield f"{name} is {_show(value)}, expected {_show(want)}"


def _ports(ports: PortSet) -> frozenset[int]:
    return frozenset(port for low, high in ports.ranges for port in range(low, high + 1))


def _show(value: Any) -> str:
    return _few(value) if isinstance(value, frozenset) else str(value)


def _few(values: frozenset[Any]) -> str:
    ordered = sorted(values)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(map(str, ordered[:_SHOWN])) + more if ordered else "nothing"
