"""Which netns has news: one edge-triggered epoll over the netlink sockets of all pods.

The loop learns that something happened and where, never what: reading is the kernel lane's.
Edge-triggered, since the loop must not be called again and again until the lane has read.
"""

import select
from collections.abc import Callable


class Wakes:
    """Readable sockets, by the UID that they were added for. `fileno` is readable when there are any."""

    def __init__(self, woken: Callable[[str], None]) -> None:
        self._epoll = select.epoll()
        self._uids: dict[int, str] = {}
        self._woken = woken

    def fileno(self) -> int:
        return self._epoll.fileno()

    def add(self, fd: int, uid: str) -> None:
        self._uids[fd] = uid
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLET)

    def remove(self, fd: int) -> None:
        """Before the socket is closed: a number that is used again must not wake the wrong pod."""
        if self._uids.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def dispatch(self) -> None:
        for fd, _ in self._epoll.poll(0, maxevents=4096):
            uid = self._uids.get(fd)
            if uid is not None:
                self._woken(uid)

    def close(self) -> None:
        self._epoll.close()
