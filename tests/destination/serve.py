"""A process with a hub and two listeners, that answers questions about itself: one line of JSON for each."""

import argparse
import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import structlog

from agent.core.discovery.answers import Endpoints
from agent.destination import server
from agent.destination.budget import Limits
from agent.destination.metrics import Method
from tests.destination.stage import Stage, endpoints, meshed

PAGE = 4096


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def memory() -> float:
    """Resident memory, in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / (1 << 20)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=server.PENDING, help="calls that may wait")
    parser.add_argument("--streams", type=int, default=Limits().streams, help="streams of a listener")
    return parser.parse_args()


async def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    given = arguments()
    pending = {
        "grpc.server.max_pending_requests": given.pending,
        "grpc.server.max_pending_requests_hard_limit": given.pending,
    }
    server.OPTIONS = tuple((dict(server.OPTIONS) | pending).items())
    here = Stage()
    here.hub.open()
    ports = [(await here.listen(limits=Limits(streams=given.streams))).port for _ in range(2)]
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    say({"ports": ports})
    while line := await reader.readline():
        question = json.loads(line)
        if "tell" in question:
            count = question["tell"]
            answer = endpoints(*map(meshed, range(count))) if count else Endpoints(True)
            here.answers.tell(Method.GET, "web", answer)
        await asyncio.sleep(0.01)
        methods = [method.value for method in Method]
        say(
            {
                "mib": memory(),
                "streams": sum(here.sample("pointsman_destination_streams", method=m) for m in methods),
                "topics": sum(here.sample("pointsman_destination_topics", method=m) for m in methods),
                "dropped": here.sample("pointsman_destination_dropped_total"),
            }
        )
    await here.close()


if __name__ == "__main__":
    asyncio.run(main())
