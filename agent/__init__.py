"""pointsman: the node agent that keeps every meshed pod's traffic on the right track."""

__version__ = "0.1.0"
