"""Python's garbage collector, set for a process with thousands of streams.

By its own rules it goes through all objects, the whole picture of the cluster among them, with nearly every
update to all streams, and a dozen times while they open: 150 ms each, half of the CPU, in which nothing else
happens. There is nothing to be found there: a call's objects go with its last reference, but for three that
gRPC leaves behind at each call's beginning, which the youngest generation finds.
"""

import gc

THRESHOLDS = (100_000, 20, 100)
"""Objects more than were freed, before the youngest generation is gone through; then how often that one,
before the next."""

PERIOD = 10.0
"""Seconds between two looks through all that is not left alone."""
WORTH = 1_000
"""Objects that must have come since, for a look to be worth its while."""


def collect_less() -> None:
    """To be called before there are streams."""
    gc.set_threshold(*THRESHOLDS)


def leave_alone() -> None:
    """What there is by now stays: it is never gone through again. To be called when all is listed."""
    gc.collect()
    gc.freeze()


def collect_old() -> None:
    """Find what has grown old before it became garbage. Other threads stand still meanwhile."""
    young, older, _ = gc.get_count()
    if young > WORTH or older:
        gc.collect()
