"""The application of a pod: it answers each line with who it is, and whom it sees at the other end.

python -m tests.demo.echo --netns NAME --name web 8080 3306
"""

import asyncio
import contextlib
import json
import os

import click

from tests.lab.netns import enter
from tests.lab.standin import bind


async def _serve(name: str, ports: tuple[int, ...]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {"app": name, "peer": writer.get_extra_info("peername")}
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(json.dumps({**ends, "line": line.decode().strip()}).encode() + b"\n")
                await writer.drain()

    for port in ports:
        await asyncio.start_server(answer, sock=bind(4, "0.0.0.0", port))
    print(json.dumps({"ready": ports}), flush=True)
    await asyncio.Event().wait()


@click.command()
@click.option("--netns", required=True, help="Name of the network namespace to serve.")
@click.option("--name", required=True, help="Name to answer with.")
@click.option("--uid", default=1000, show_default=True)
@click.argument("ports", type=int, nargs=-1, required=True)
def main(netns: str, name: str, uid: int, ports: tuple[int, ...]) -> None:
    """Serve `ports` in a network namespace."""
    enter(netns)
    os.setgid(uid)
    os.setuid(uid)
    asyncio.run(_serve(name, ports))


if __name__ == "__main__":
    main()
