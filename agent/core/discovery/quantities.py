"""Durations as Go writes them and quantities as Kubernetes writes them, in whole units."""

import re

LONGEST = 2**63 - 1
"""The longest duration in nanoseconds that Go can hold, about 292 years."""

_UNITS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PART = re.compile(r"([0-9]{0,20})(?:\.([0-9]{0,20}))?(ns|us|µs|μs|ms|s|m|h)")
_QUANTITY = re.compile(
    r"\+?([0-9]{0,20})(?:\.([0-9]{0,20}))?(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?"
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_duration(text: str) -> int | None:
    """Nanoseconds of `200ms`, `1.5s` or `1h2m`, with an optional sign, or of a bare `0`. None for any other
    text, and for what Go cannot hold."""
    negative, body = text.startswith("-"), text[1:] if text[:1] in ("-", "+") else text
    if body == "0":
        return 0
    total, at = 0, 0
    while at < len(body):
        part = _PART.match(body, at)
        if part is None or not (part[1] or part[2]):
            return None
        fraction = part[2] or ""
        total += int(part[1] or 0) * _UNITS[part[3]]
        total += int(fraction or 0) * _UNITS[part[3]] // 10 ** len(fraction)
        at = part.end()
    if not body or total > LONGEST:
        return None
    return -total if negative else total


def parse_milli(text: str) -> int | None:
    """Thousandths of a quantity such as `500m`, `0.1`, `2k` or `1e3`, rounded up. None for any other text,
    and for a negative one."""
    match = _QUANTITY.fullmatch(text)
    if match is None or not (match[1] or match[2]):
        return None
    whole, fraction, suffix, exponent = match.groups(default="")
    digits = int(whole + fraction)
    ten = 3 - len(fraction) + (int(exponent) if exponent else _DECIMAL.get(suffix, 0))
    digits <<= _BINARY.get(suffix, 0)
    if ten >= 0:
        return digits * int(10**ten)
    return -(-digits // int(10**-ten))
