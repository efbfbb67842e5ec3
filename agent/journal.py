"""One log line per change of a pod's state: what happened, to whom, why, and what to do."""

import time

import structlog

from agent.core.lifecycle import Redirection
from agent.core.reasons import Phase, Reason
from agent.node.keeper import Keeper

log = structlog.get_logger("pods")

HOW = {
    "installed": "installed",
    "updated": "updated in place",
    "replaced": "replaced",
    "claimed": "adopted",
    "unchanged": "adopted",
}


QUIET = 10.0
"""Seconds between two lines about foreign changes of one pod that leave our table intact."""


class Journal:
    """Tells changes of status apart and logs each once."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}
        """When, by pod UID; only what is younger than QUIET."""

    def changed(self, keeper: Keeper, before: Redirection, now: Redirection) -> None:
        line = log.bind(pod=str(keeper.key), reason=now.reason.value)
        if now.drifts > before.drifts and now.reason is not Reason.CONTESTED:
            line.warning(
                "drift repaired",
                culprit=now.culprit or "unknown",
                differences=list(now.differences),
                how=now.how,
                install_ms=_rounded(now.install_ms),
            )
        elif now.foreign_changes > before.foreign_changes and now.phase is Phase.APPLIED:
            self._intact(keeper.uid, line, now)
        if (now.phase, now.reason) != (before.phase, before.reason):
            self._moved(line, now)
        elif (
            now.phase is Phase.APPLIED and now.install_ms != before.install_ms and now.drifts == before.drifts
        ):
            line.info("rules updated", how=HOW.get(now.how, now.how), install_ms=_rounded(now.install_ms))
        elif now.phase is Phase.FAILED and now.message != before.message:
            line.warning("still failing", message=now.message, attempts=now.attempts)
        if now.phase is not Phase.EXCLUDED:
            self._settled(line, before, now)
        for complaint in now.complaints:
            if complaint not in before.complaints:
                line.warning(
                    "complaint",
                    complaint=complaint.reason.value,
                    about=complaint.subject,
                    message=complaint.message,
                    remedy=complaint.remedy,
                )

    def _intact(self, uid: str, line: structlog.typing.FilteringBoundLogger, now: Redirection) -> None:
        """Somebody changed other tables, or tried to change ours. A busy firewall must not fill the log."""
        moment = time.monotonic()
        self._told = {other: at for other, at in self._told.items() if moment - at < QUIET}
        if uid not in self._told:
            self._told[uid] = moment
            line.info("foreign change, our table is intact", culprit=now.culprit)

    def _settled(
        self, line: structlog.typing.FilteringBoundLogger, before: Redirection, now: Redirection
    ) -> None:
        """A complaint that is over is a change as well: whoever reads the log must not go on looking."""
        still = {(complaint.reason, complaint.subject) for complaint in now.complaints}
        for complaint in before.complaints:
            if (complaint.reason, complaint.subject) not in still:
                line.info("complaint settled", complaint=complaint.reason.value, about=complaint.subject)

    def _moved(self, line: structlog.typing.FilteringBoundLogger, now: Redirection) -> None:
        match now.phase:
            case Phase.APPLIED:
                line.info(
                    "redirected" if now.mode == "nftables" and not now.message else "state",
                    how=HOW.get(now.how, now.how),
                    install_ms=_rounded(now.install_ms),
                    verify_ms=_rounded(now.verify_ms),
                    **({"exposed_s": _rounded(now.exposed_s)} if now.exposed_s is not None else {}),
                    **({"message": now.message} if now.message else {}),
                )
            case Phase.FAILED:
                line.error("failed", message=now.message, attempts=now.attempts)
            case Phase.PENDING | Phase.EXCLUDED:
                line.info("state", phase=now.phase.value, message=now.message)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
