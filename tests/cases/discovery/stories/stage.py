"""What stories share: the bench they play on, and small worlds to play with."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from tests.cases.discovery.case import Case
from tests.cases.discovery.run import Run, running
from tests.cases.discovery.schema import ConfigText, Text, text_of

SERVICE = "web.shop.svc.cluster.test"
CLUSTER_IP = "10.96.0.1"


class Bench:
    """Where a story plays its case. `cases` are all of the file. `runs` collects what was played."""

    def __init__(self, case: Case, cases: tuple[Case, ...], *, in_pod: bool) -> None:
        self.case = case
        self.cases = cases
        self.in_pod = in_pod
        self.runs: list[Run] = []

    @contextlib.asynccontextmanager
    async def run(
        self, *objects: Text | dict[str, Any], config: ConfigText | None = None
    ) -> AsyncIterator[Run]:
        """A service with these objects, in the notation or read already."""
        texts = tuple(text_of(each) if isinstance(each, dict) else each for each in objects)
        async with running(self.case, texts, in_pod=self.in_pod, config=config) as run:
            self.runs.append(run)
            yield run

    def configured(self, **settings: Any) -> ConfigText:
        """The case's config with other settings."""
        return msgspec.structs.replace(self.case.config, **settings)


Story = Callable[[Bench], Awaitable[None]]


def service(ip: str = CLUSTER_IP, port: str = "- 80") -> dict[str, Any]:
    """The Service web, in the notation."""
    return {"svc": "web", "ip": [ip], "ports": [port]}


def web_slice(*eps: str, port: str = "- 80") -> dict[str, Any]:
    """The one slice of web."""
    return {"slice": "web-1", "of": "web", "ports": [port], "eps": list(eps)}
