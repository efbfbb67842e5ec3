"""The metrics page: linted by promtool, documented whole, and true."""

import re
import shutil
import subprocess
from pathlib import Path

from tests.daemon.mesh import ANSWERING, WEB, meshed
from tests.lab.agent import agent
from tests.lab.asker import asking
from tests.lab.netns import netns, run

ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / ".venv" / "tools" / "usr" / "bin" / "promtool"


def promtool() -> str:
    found = str(UNPACKED) if UNPACKED.exists() else shutil.which("promtool")
    assert found, "promtool is missing: run .ci/setup"
    return found


def scrape(directory: Path) -> str:
    """A page with every family on it: a pod redirected, drifted, repaired, with complaints, that asks for
    destinations, and a CNI configuration that is kept."""
    flags = (*ANSWERING, "--table-ownership", "off", "--listeners", "0.2", "--install-cni")
    place = ("--conf-dir", str(directory / "net.d"), "--bin-dir", str(directory / "bin"))
    (directory / "net.d").mkdir()
    (directory / "net.d" / "10-net.conflist").write_text('{"name": "net", "plugins": [{"type": "ptp"}]}')
    with netns() as name, agent(directory, *flags, *place) as one:
        one.put(meshed("web", name))
        one.wait_reason("shop/web", "Redirected")
        run("ip", "netns", "exec", name, "nft", "flush", "ruleset")
        one.wait(lambda: one.pod("shop/web")["status"]["drifts"] == 1, "a repair")
        one.wait(lambda: one.pod("shop/web")["status"]["complaints"], "complaints")
        one.wait(lambda: one.pod("shop/web")["destination"]["port"], "a listener")
        with asking(name, WEB) as client:
            client.wait(lambda: WEB in client.current, "an answer")
            page: str = one.ask("GET", "/metrics")
            return page


def test_promtool_finds_nothing_to_say(tmp_path: Path) -> None:
    page = scrape(tmp_path)
    done = subprocess.run(
        [promtool(), "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if line.startswith(("pointsman_", "grpc_"))]
    assert ours == []
    assert done.returncode in (0, 3), done.stderr


def test_docs_name_every_metric_and_no_other(tmp_path: Path) -> None:
    exported = set(re.findall(r"^# TYPE ((?:pointsman|grpc)_\w+) \w+$", scrape(tmp_path), re.M))
    exported = {name for name in exported if not name.endswith("_created")}
    documented = set(
        re.findall(r"^\| `((?:pointsman|grpc)_\w+)` ", (ROOT / "docs" / "metrics.md").read_text(), re.M)
    )
    assert exported == documented
