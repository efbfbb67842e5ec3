"""All settings of `pointsman run`, parsed once, rejected at the start with the flag's name.

Each flag has an environment twin: `--run-dir` is `POINTSMAN_RUN_DIR`.
"""

from pathlib import Path
from typing import Any

import msgspec

from agent.cni.install import CniSettings
from agent.core.discovery.config import Discovery
from agent.core.spec import NodeDefaults


class Answering(msgspec.Struct, frozen=True):
    """The destination service. `discovery`: how Linkerd was installed, as far as flags say; `overrides`:
    those of its fields that were given, which stand over Linkerd's ConfigMap; `trust_domain` None: wait for
    that. `diagnostics`: address of the node's own listener; `port`: in pods whose proxies do not say."""

    enabled: bool = True
    discovery: Discovery = Discovery()
    overrides: dict[str, Any] = {}
    trust_domain: str | None = None
    diagnostics: tuple[str, int] | None = ("127.0.0.1", 4188)
    port: int = 4186
    node_name: str = ""


class Settings(msgspec.Struct, frozen=True):
    """What the daemon is told. Times in seconds."""

    source: Path
    defaults: NodeDefaults = NodeDefaults()
    run_dir: Path = Path("/run/pointsman")
    proc: Path = Path("/proc")
    admin_address: tuple[str, int] | None = ("127.0.0.1", 4187)
    owned_tables: bool = True
    observe: bool = False
    discover: bool = True
    round_period: float = 2.0
    compare_period: float = 300.0
    listener_period: float = 10.0
    hang_timeout: float = 10.0
    unknown_wait: float = 2.0
    cni: CniSettings | None = None
    answering: Answering = Answering()
    repair_burst: float = 100.0
    repair_rate: float = 5.0

    @property
    def lock_path(self) -> Path:
        return self.run_dir / "writer.lock"

    @property
    def attachments_dir(self) -> Path:
        return self.run_dir / "attachments"

    @property
    def socket_path(self) -> Path:
        return self.run_dir / "agent.sock"
