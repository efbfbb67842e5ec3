"""Running totals of the kernel's counters, which never go backwards.

A counter in the kernel starts again at zero when its table is replaced, and is gone with its pod.
The totals that people see must not: what a counter held before it was lost is kept here.
"""

Counters = dict[str, int]
"""Packets (= connections, since NAT sees only the first packet of each) by counter name."""


class Tally:
    """Sum over all pods that ever were, by counter name."""

    def __init__(self) -> None:
        self._kept: Counters = {}
        self._live: dict[str, Counters] = {}

    def seen(self, uid: str, counters: Counters) -> None:
        """Take in what the kernel shows for a pod now. A value below the last one means that the
        counter was lost and began anew, so what it last held is kept."""
        before = self._live.get(uid, {})
        for name, last in before.items():
            if counters.get(name, 0) < last:
                self._keep(name, last)
        self._live[uid] = dict(counters)

    def lost(self, uid: str, counters: Counters) -> None:
        """The pod's counters were read and then reset by a replacement of the table."""
        self.seen(uid, counters)
        self.ended(uid)

    def ended(self, uid: str) -> None:
        """The pod is gone, and its counters with it: keep what was last seen."""
        for name, value in self._live.pop(uid, {}).items():
            self._keep(name, value)

    def total(self) -> Counters:
        total = dict(self._kept)
        for counters in self._live.values():
            for name, value in counters.items():
                total[name] = total.get(name, 0) + value
        return total

    def of(self, uid: str) -> Counters:
        return dict(self._live.get(uid, {}))

    def _keep(self, name: str, value: int) -> None:
        self._kept[name] = self._kept.get(name, 0) + value
