"""Chapter 9: what a pod is told that asks where to go, and how that follows what happens."""

import time

from tests.demo.manifests import ASKS, endpoints, pod_of, service
from tests.demo.network import Pod
from tests.demo.program import Program
from tests.demo.redirection import SKIP_IN
from tests.demo.stage import Stage, seen_by
from tests.demo.tell import Teller, eventually
from tests.lab.agent import JSON

NAME, PORT = "db.default.svc.cluster.local", 8080
IDENTITY = "{}.default.serviceaccount.identity.linkerd.cluster.local"
OPAQUE = "config.linkerd.io/opaque-ports"
MESSAGES = {"Get": 6, "GetProfile": 2}
"""What the two questions are sent in this chapter: the first answer, and each change once."""
DB = {SKIP_IN: "3306"}
"""What db is annotated with from the start."""


class Asker:
    """A client in a pod whose questions stay open, as a proxy's do: what it is told comes in words."""

    def __init__(self, stage: Stage, tell: Teller, pod: Pod, question: str, about: str) -> None:
        self._tell = tell
        self._about = f" {about}: "
        self._client: Program = stage.within(
            tell, pod, "diagnostics", question, about, "--watch", "--api-addr", ASKS
        )

    def hears(self, claim: str, *wanted: str, since: float | None = None) -> None:
        """It is told so many lines as are `wanted`, each with these words; `since`: when the cause came."""
        lines: list[str] = []

        def come() -> bool:
            lines.extend(line.partition(self._about)[2] or line for line in self._client.lines())
            return len(lines) >= len(wanted)

        eventually(come, True)
        took = f", {(time.monotonic() - since) * 1000:.0f} ms after that was written" if since else ""
        for line in lines:
            self._tell.quote(line)
        got = [want if want in line else line for want, line in zip(wanted, lines, strict=False)]
        self._tell.fact(f"{claim}{took}", got=got + lines[len(wanted) :], want=list(wanted))

    def silent(self) -> list[str]:
        """What it has been told since it last was to hear something."""
        return self._client.lines()

    def close(self) -> None:
        self._client.close()


def pods_ask(stage: Stage, tell: Teller) -> None:
    tell.heading("A pod asks where to go")
    tell.say(
        f"Proxies are told to ask at {ASKS}. That is loopback inside each pod: the agent listens there, in "
        "the pod's own network namespace. So it is near, needs no TLS, and the agent knows who asks."
    )
    pods = (stage.web, stage.db, stage.job)
    want = [("us", 4186)] * len(pods)
    tell.fact(
        "web, db and job each have that listener", got=eventually(lambda: _asks(stage, pods), want), want=want
    )
    tell.say("A client in web asks for a Service by its name, and keeps asking as a proxy does.")
    names = Asker(stage, tell, stage.web, "endpoints", f"{NAME}:{PORT}")
    names.hears("a name that is not there yet gets an answer as well", "there is no such Service")
    _service_comes(stage, tell, names)
    address = _pod_is_not_ready(stage, tell, names)
    _annotation_changes(stage, tell, names, address)
    _pods_leave(stage, tell, names, address)
    for asker in (names, address):
        asker.close()


def _service_comes(stage: Stage, tell: Teller, names: Asker) -> None:
    db, job = stage.db, stage.job
    stage.agent.put(endpoints("db", PORT, {db: True, job: True}))
    tell.say("The Service db is created; its endpoints are db and job.")
    began = _put(stage, service("db", "10.96.0.10", PORT))
    names.hears(
        "it is told of both, each with the identity to expect, since each is really redirected",
        *(f"added {_at(pod)}: {_meshed(pod, 'HTTP/2')}" for pod in (db, job)),
        since=began,
    )


def _pod_is_not_ready(stage: Stage, tell: Teller, names: Asker) -> Asker:
    db, job = stage.db, stage.job
    tell.say("db is not ready any more, as a database is that waits for its peers.")
    stage.agent.put(pod_of(db, ready=False, annotations=DB))
    began = _put(stage, endpoints("db", PORT, {db: False, job: True}))
    names.hears("the Service does without it", f"removed {_at(db)}", since=began)
    tell.say("Its peers connect to its address all the same. A client that asks for that now:")
    address = Asker(stage, tell, stage.web, "profile", f"{db.address}:{PORT}")
    address.hears(
        "is answered in full: readiness decides who serves a Service, and nothing else",
        "not opaque, by default opaque ports",
        "retry budget",
        f"endpoint {_at(db)}",
        f"TLS as {IDENTITY.format(db.name)}",
        "hint HTTP/2",
        "transport header to port 4143",
        "redirected",
        f"pod={db.name}, serviceaccount={db.name}",
    )
    return address


def _annotation_changes(stage: Stage, tell: Teller, names: Asker, address: Asker) -> None:
    db, job = stage.db, stage.job
    tell.say(f"db gets the annotation {OPAQUE}: {PORT}. No proxy is to guess its protocol.")
    began = _put(stage, pod_of(db, ready=False, annotations={**DB, OPAQUE: str(PORT)}))
    address.hears(
        "open questions are told the difference",
        "not opaque, by default opaque ports -> opaque, by annotation of the Pod",
        "hint HTTP/2 -> hint opaque",
        since=began,
    )
    tell.say("And db is ready again.")
    stage.agent.put(pod_of(db, annotations={**DB, OPAQUE: str(PORT)}))
    began = _put(stage, endpoints("db", PORT, {db: True, job: True}))
    names.hears(
        "back in the Service, and opaque there as well",
        f"added {_at(db)}: {_meshed(db, 'opaque')}",
        since=began,
    )


def _pods_leave(stage: Stage, tell: Teller, names: Asker, address: Asker) -> None:
    db, job = stage.db, stage.job
    tell.say("job leaves the mesh (pointsman.io/redirect: disabled): its proxy sees no new connection.")
    began = _put(stage, pod_of(job, annotations={"pointsman.io/redirect": "disabled"}))
    names.hears(
        "so nobody is to begin TLS with it, which would end at the application",
        f"changed {_at(job)}: TLS as {IDENTITY.format(job.name)} -> no TLS",
        since=began,
    )
    tell.say("Then its endpoint leaves the Service.")
    began = _put(stage, endpoints("db", PORT, {db: True}))
    names.hears("who asks for the Service is told", f"removed {_at(job)}", since=began)
    tell.fact("who asks for the address of db is not: that answer is the same", got=address.silent(), want=[])


def _put(stage: Stage, manifest: JSON) -> float:
    """Write a manifest. Returns when that began."""
    began = time.monotonic()
    stage.agent.put(manifest)
    return began


def _meshed(pod: Pod, hint: str) -> str:
    return f"TLS as {IDENTITY.format(pod.name)}, hint {hint}, transport header to port 4143, redirected"


def _at(pod: Pod) -> str:
    return f"{pod.address}:{PORT} ({pod.name})"


def _asks(stage: Stage, pods: tuple[Pod, ...]) -> list[tuple[str, int]]:
    asking = (seen_by(stage.agent, pod).destination for pod in pods)
    return [(each.asks, each.port) if each else ("nobody", 0) for each in asking]
