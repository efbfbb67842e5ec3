"""Partial comparison of what a stream holds with what a case writes."""

from typing import Any

DEFAULT_BUDGET = {"ratio": 0.2, "min": 10, "ttl_s": 10}


def differences(wanted: Any, got: Any, path: str = "") -> list[str]:
    """Where `got` is not as written. A mapping names only what it cares about; lists and `{}` are exact."""
    if path.endswith("retry_budget") and wanted == "default":
        wanted = DEFAULT_BUDGET
    if isinstance(wanted, dict) and wanted and isinstance(got, dict):
        found: list[str] = []
        for key, value in wanted.items():
            inner = f"{path}.{key}" if path else key
            if value == "same" and key == "server_name":
                value = got.get("dns_identity")  # noqa: PLW2901 - the word stands for this value
            if key not in got and value is not None:
                found.append(f"{inner}: expected {value!r}, it is not there")
            else:
                found += differences(value, got.get(key), inner)
        return found
    if wanted == got and isinstance(wanted, bool) == isinstance(got, bool):
        return []
    return [f"{path or 'value'}: expected {wanted!r}, got {got!r}"]


def best(wanted: dict[str, Any], candidates: list[dict[str, Any]], at: str | None = None) -> list[str]:
    """Differences to the candidate that is nearest, or to the one at `at`; none when one is as written."""
    if at is not None:
        candidates = [each for each in candidates if each["at"] == at]
    if not candidates:
        return [f"no address {at}" if at else "no address"]
    return min((differences(wanted, each, each["at"]) for each in candidates), key=len)
