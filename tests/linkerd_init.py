"""The commands by which linkerd-init redirects a pod, as data: for tests, the demo and the benchmarks.

It lists the nat table, builds and enters the inbound chain, builds and enters the outbound chain, and
lists again: twelve processes per address family. The first that fails ends it, without a rollback.
Where it finds its chains, an old release says so and ends well; a newer one does what `rerun` says.
"""

from collections.abc import Iterable, Iterator

Command = tuple[str, ...]

PARTIAL, INBOUND_ONLY, COMPLETE = 2, 5, 11
"""Number of commands after which chains exist, inbound is redirected, and outbound is redirected too."""


def COMMANDS(  # noqa: N802 - reads as the table that it is
    binary: str = "iptables-nft",
    *,
    inbound_port: int = 4143,
    outbound_port: int = 4140,
    skip_inbound: Iterable[int | str] = (4190, 4191, 4567, 4568),
    skip_outbound: Iterable[int | str] = (4567, 4568),
    proxy_uid: int = 2102,
) -> tuple[Command, ...]:
    """The twelve commands of one family; `binary` is one of ip{,6}tables-{nft,legacy}.

    At most 15 ports in each list, a range "a:b" counts as two: the limit of xt_multiport. linkerd-init
    writes more of them as more rules.
    """
    save = (f"{binary}-save", "-t", "nat")
    inbound, outbound = "PROXY_INIT_REDIRECT", "PROXY_INIT_OUTPUT"

    def change(what: str, *arguments: str) -> Command:
        return (binary, "-t", "nat", *arguments, "-m", "comment", "--comment", f"proxy-init/{what}")

    def skip(chain: str, ports: Iterable[int | str]) -> Command:
        listed = ",".join(map(str, ports))
        match = ("-p", "tcp", "--match", "multiport", "--dports", listed)
        return change(f"ignore-port-{listed}", "-A", chain, *match, "-j", "RETURN")

    def redirect(what: str, chain: str, port: int) -> Command:
        return change(what, "-A", chain, "-p", "tcp", "-j", "REDIRECT", "--to-port", str(port))

    return (
        save,
        (binary, "-t", "nat", "-N", inbound),
        skip(inbound, skip_inbound),
        redirect("redirect-all-incoming-to-proxy-port", inbound, inbound_port),
        change("install-proxy-init-prerouting", "-A", "PREROUTING", "-j", inbound),
        (binary, "-t", "nat", "-N", outbound),
        change(
            "ignore-proxy-user-id",
            "-A",
            outbound,
            "-m",
            "owner",
            "--uid-owner",
            str(proxy_uid),
            "-j",
            "RETURN",
        ),
        change("ignore-loopback", "-A", outbound, "-o", "lo", "-j", "RETURN"),
        skip(outbound, skip_outbound),
        redirect("redirect-all-outgoing-to-proxy-port", outbound, outbound_port),
        change("install-proxy-init-output", "-A", "OUTPUT", "-j", outbound),
        save,
    )


def rerun(commands: tuple[Command, ...], done: int) -> Iterator[Command]:
    """What a newer release runs after the first `done` of these commands: it flushes and fills the chains
    that are there, and enters those that are not entered yet."""
    for number, command in enumerate(commands):
        existed = number < done
        if "-N" in command:
            yield tuple("-F" if existed and word == "-N" else word for word in command)
        elif not (existed and any(word.startswith("proxy-init/install-") for word in command)):
            yield command
