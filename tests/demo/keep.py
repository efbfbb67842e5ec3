"""What to try while `make demo KEEP=1` keeps the stage: commands to copy, as they are."""

import sys
import textwrap
import time
from pathlib import Path

from tests.demo.answers import NAME, PORT
from tests.demo.manifests import ASKS
from tests.demo.stage import APPLICATION_UID, HOME, Stage
from tests.demo.tell import Teller


def suggestions(stage: Stage) -> list[tuple[str, str]]:
    """What each command shows, and the command, for a shell of root in this directory."""
    web, db, shop = stage.web, stage.db, stage.shop
    pointsman, run_dir = _program(), f"--run-dir {stage.agent.run_dir}"
    call = f"exec 3<>/dev/tcp/{db.address}/8080; echo hi >&3; head -n 1 <&3"
    user = f"setpriv --reuid {APPLICATION_UID} --clear-groups"
    ask = f"{pointsman} diagnostics endpoints {NAME}:{PORT} --api-addr {ASKS}"
    annotate = "sed -i 's/3306/3306,8080/'"
    return [
        ("the pods", f"{pointsman} redirections {run_dir} -o wide"),
        ("settings and where they come from", f"{pointsman} explain {web.key} {run_dir}"),
        ("one connection", f"{pointsman} explain {db.key} --in 3306 --from {web.address} {run_dir}"),
        ("what a proxy in web is told", f"ip netns exec {web.netns} {ask} {run_dir} -o wide"),
        ("the rules and their counters", f"ip netns exec {web.netns} nft list table inet pointsman"),
        ("a connection through both proxies", f"ip netns exec {web.netns} {user} bash -c '{call}'"),
        ("what the proxy of db saw of it", f"tail -n 1 {HOME}/{db.name}-proxy.log"),
        ("a flush that the agent repairs", f"ip netns exec {shop.netns} nft flush ruleset"),
        ("how it reports that", f"tail -n 1 {stage.plain.log}"),
        ("an annotation, changed live", f"{annotate} {stage.agent.manifests}/Pod-default-{web.name}.yaml"),
        ("what the agent makes of it", f"tail -n 1 {stage.agent.log}"),
        ("the metrics", f"curl -s --unix-socket {stage.agent.run_dir}/agent.sock http://agent/metrics"),
    ]


def keep_running(stage: Stage, tell: Teller) -> None:
    """Print them all, and return on Ctrl-C."""
    try:
        tell.line("\nEverything keeps running. To try, in another shell (root, in this directory):")
        for what, command in suggestions(stage):
            tell.line(textwrap.indent(f"# {what}\n{command}", "   "))
        tell.line("\nCtrl-C ends it and removes everything.")
        while True:
            # Not signal.pause(): a signal that comes just before it would be slept over.
            time.sleep(0.2)
    except KeyboardInterrupt:
        return


def _program() -> Path:
    """The installed command, as short as this directory allows."""
    program = Path(sys.executable).with_name("pointsman")
    return program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program
