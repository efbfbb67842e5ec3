"""Whether a port in a pod is the application's: before the agent listens there, and while it does.

Each look takes a descriptor of the pod's netns, which it closes, and may be made on any thread. `overlapping`
tells whether another agent of this node runs. Answers are words for people, "" when all is well.
"""

import os
from collections.abc import Callable, Iterable

from agent.core.discovery.asked import Asked
from agent.node.listeners import Holder, ListenersUnreadableError, bindable, holders, own_inodes


def clash(fd: int, place: Asked, overlapping: Callable[[], bool]) -> str:
    """Why the agent must not, or cannot, listen there. OSError where the netns cannot be entered."""
    try:
        users = _strangers(_holders(fd, place), overlapping)
        if users:
            return f"a process of user {users} listens at {place.address} in the pod already"
        refused = bindable(fd, place.host, place.port)
        return f"cannot listen at {place.address} in the pod: {refused}" if refused else ""
    finally:
        os.close(fd)


def sharers(fd: int, place: Asked, overlapping: Callable[[], bool]) -> str:
    """Who has come to share the address at which this process listens. Raises what `clash` raises."""
    try:
        found = _holders(fd, place)
    finally:
        os.close(fd)
    # One of them is ours.
    ours = own_inodes() if len(found) > 1 else {one.inode for one in found}
    users = _strangers((one for one in found if one.inode not in ours), overlapping)
    if not users:
        return ""
    return (
        f"a process of user {users} has come to share {place.address} in the pod with this agent, and gets "
        "some of what its proxy asks"
    )


def _holders(fd: int, place: Asked) -> tuple[Holder, ...]:
    try:
        return holders(fd, place.host, place.port)
    except ListenersUnreadableError:
        # A kernel without sock_diag: only its refusal to bind tells.
        return ()


def _strangers(found: Iterable[Holder], overlapping: Callable[[], bool]) -> str:
    """Their users. Only a process of the agent's own user can share its port, and may be another agent."""
    users = {one.uid for one in found}
    if users == {os.geteuid()} and overlapping():
        return ""
    return ", ".join(map(str, sorted(users)))
