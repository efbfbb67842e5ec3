"""Chapters 10 and 11: what the agent can tell about all this."""

import re

from tests.demo.answers import MESSAGES
from tests.demo.redirection import SKIP_OUT
from tests.demo.stage import Stage
from tests.demo.tell import Teller


def explained(stage: Stage, tell: Teller) -> None:
    tell.heading("Why does this connection go where it goes?")
    questions = {
        8080: ("redirected to the proxy's outbound port 4140", "rule out-redirect"),
        3306: ("direct", "rule out-skip-port", f"pod annotation {SKIP_OUT}"),
    }
    for port, answers in questions.items():
        destination = f"{stage.db.address}:{port}"
        status, text = stage.pointsman(tell, "explain", stage.web.key, "--out", destination)
        lines = [line.strip() for line in text.splitlines()]
        found = [any(line.startswith(answer) for line in lines) for answer in answers]
        tell.fact(
            f"verdict, rule and setting, as seen on the wire before: {answers[0]}",
            got=(status, found),
            want=(0, [True] * len(answers)),
        )


def measured(stage: Stage, tell: Teller) -> None:
    tell.heading("The metrics page")
    page: str = stage.agent.ask("GET", "/metrics")
    other: str = stage.plain.ask("GET", "/metrics")
    wanted = re.compile(
        r"pointsman_(pods|(redirected|skipped)_connections_total|netns_held|owned_tables|foreign_changes_total"
        r"|destination_(updates_total|listeners))\b.* (?!0\.0$)"
    )
    tell.show("\n".join(line for line in page.splitlines() if wanted.match(line)))
    tell.say("And of the second agent:")
    tell.show("\n".join(line for line in other.splitlines() if line.startswith("pointsman_drift_total")))
    for direction in ("outbound", "inbound"):
        counted = _value(page, f'pointsman_redirected_connections_total{{direction="{direction}"}}')
        seen = sum(pod.seen[direction] for pod in (stage.web, stage.db, stage.job))
        tell.fact(
            f"{direction}: the kernel has counted {counted} redirected connections, as many as the proxies "
            "have accepted",
            got=counted,
            want=seen,
        )
    told = [_value(page, f'pointsman_destination_updates_total{{method="{name}"}}') for name in MESSAGES]
    tell.fact(
        f"the two clients have been sent {' and '.join(map(str, told))} messages: each change once",
        got=told,
        want=list(MESSAGES.values()),
    )
    repairs = [_value(other, f'pointsman_drift_total{{kind="{kind}"}}') for kind in ("table", "rule")]
    tell.fact("two repairs by the second agent: a table and a rule", got=repairs, want=[1, 1])


def _value(page: str, name: str) -> int:
    """Of one metric with its labels; -1 when it is not on the page."""
    return next((int(float(line.split()[-1])) for line in page.splitlines() if line.startswith(name)), -1)
