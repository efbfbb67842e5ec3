"""Python's garbage collector, set for a process with thousands of streams.

By its own rules it goes through all objects, the whole picture of the cluster among them, with nearly every
update to all streams, and a dozen times while they open: 150 ms each, half of the CPU, in which nothing else
happens. There is nothing to be found there: a call's objects go with its last reference, but for a few that
gRPC leaves behind at its beginning, which the young generations find.
"""

import gc

THRESHOLDS = (20_000, 20, 100)
"""Objects more than were freed, before the youngest generation is gone through; then how often that one,
before the next."""


def collect_less() -> None:
    """To be called before there are streams."""
    gc.set_threshold(*THRESHOLDS)


def leave_alone() -> None:
    """What there is by now stays: it is never gone through again. To be called when all is listed."""
    gc.collect()
    gc.freeze()
