"""What is said about a pod whose visit failed: every message begins with what cannot be done."""

import errno

import pytest

from agent.core.names import PodKey
from agent.core.reasons import Reason
from agent.node.addresses import AddressesUnreadableError
from agent.node.netns import HostNetns, NetnsMissing
from agent.node.nft.channel import NftError
from agent.node.outcome import failed


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (NftError(errno.EINVAL, "change x", ("rule a",)), Reason.COMMIT_REFUSED, "cannot change x: EINVAL"),
        (
            AddressesUnreadableError(1, "cannot list addresses"),
            Reason.COMMIT_REFUSED,
            "cannot list addresses",
        ),
        (NftError(errno.EMFILE, "read"), Reason.COMMIT_REFUSED, "limit of open files"),
        (OSError(errno.EMFILE, "Too many open files"), Reason.COMMIT_REFUSED, "limit of open files"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), Reason.PERMISSION_DENIED, "cannot use /x"),
        (NetnsMissing("cannot open it"), Reason.NETNS_MISSING, "cannot open it"),
        (HostNetns("cannot use it"), Reason.NETNS_MISMATCH, "cannot use it"),
        (KeyError("x"), Reason.INTERNAL_ERROR, "KeyError: 'x'"),
    ],
)
def test_each_failure_has_its_reason_and_its_words(error: Exception, reason: Reason, words: str) -> None:
    finding = failed(error, PodKey("default", "web"), ())
    assert finding.reason is reason
    assert words in finding.message
    assert finding.message.startswith("cannot ") or reason is Reason.INTERNAL_ERROR
