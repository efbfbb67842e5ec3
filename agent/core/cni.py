"""The CNI protocol, as far as a chained plugin that changes no result needs it: requests and errors.

Source: CNI specification 1.1.0. The arguments are environment variables, the configuration is JSON on stdin;
`prevResult` is never decoded beyond the addresses, since the shim echoes it byte for byte.
"""

import re
from collections.abc import Mapping
from enum import IntEnum, StrEnum
from ipaddress import ip_interface

import msgspec

from agent.core.attachments import Attachment
from agent.core.names import PodKey

VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
LATEST = VERSIONS[-1]

_CONTAINER_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_IFNAME = re.compile(r"[^/:\s\0]{1,15}")
_LONGEST_ID = 200
_LONGEST_WORDS = 4096
"""Characters of a message, and of its details: the shim takes a longer answer for that of no agent."""

_QUOTES = " \t\n\"'"


class Verb(StrEnum):
    """What a runtime asks for. VERSION is answered by the shim alone."""

    ADD = "ADD"
    DEL = "DEL"
    CHECK = "CHECK"
    STATUS = "STATUS"
    GC = "GC"


class Code(IntEnum):
    """Error codes of the specification."""

    VERSION = 1
    CONTAINER = 3
    ENVIRONMENT = 4
    DECODE = 6
    LATER = 11
    UNAVAILABLE = 50


class CniError(Exception):
    """An answer to the runtime: `message` says what cannot be done to whom, `details` what helps."""

    def __init__(self, code: Code, message: str, details: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


class Request(msgspec.Struct, frozen=True):
    """One call. `valid`: for GC, the (container id, interface) pairs that live; None for other verbs."""

    verb: Verb
    version: str
    attachment: Attachment
    valid: frozenset[tuple[str, str]] | None = None


class _Address(msgspec.Struct):
    address: str


class _Result(msgspec.Struct):
    ips: list[_Address] | None = None


class _Valid(msgspec.Struct):
    container_id: str = msgspec.field(name="containerID")
    ifname: str


class _Runtime(msgspec.Struct):
    annotations: dict[str, str] | None = msgspec.field(default=None, name="io.kubernetes.cri.pod-annotations")


class _Version(msgspec.Struct, rename="camel"):
    cni_version: str | None = None


class _Conf(_Version, rename="camel"):
    prev_result: msgspec.Raw = msgspec.Raw(b"null")
    runtime_config: _Runtime | None = None
    valid: list[_Valid] | None = msgspec.field(default=None, name="cni.dev/valid-attachments")


def parse(environment: Mapping[str, str], stdin: bytes) -> Request:
    """One call as a value. Raises CniError.

    DEL and GC must not fail because of what they were given: with a configuration that cannot be decoded
    they are about the container alone, and about nothing.
    """
    verb = _verb(environment.get("CNI_COMMAND", ""))
    conf = _conf(stdin, verb)
    attachment = Attachment(
        container_id=environment.get("CNI_CONTAINERID", ""),
        ifname=environment.get("CNI_IFNAME", ""),
        netns=environment.get("CNI_NETNS", ""),
        annotations=conf.runtime_config.annotations if conf.runtime_config else None,
        ips=_ips(conf.prev_result),
    )
    if verb in (Verb.ADD, Verb.CHECK):
        _check(attachment)
    attachment = _named(attachment, arguments(environment.get("CNI_ARGS", "")))
    valid = frozenset((v.container_id, v.ifname) for v in conf.valid) if conf.valid is not None else None
    return Request(verb, conf.cni_version or LATEST, attachment, valid if verb is Verb.GC else None)


def arguments(text: str) -> dict[str, str]:
    """CNI_ARGS, `KEY=VALUE;...` in any order; values may be quoted, what is no pair is left out."""
    pairs = (entry.partition("=") for entry in text.strip(_QUOTES).split(";"))
    return {key.strip(): value.strip(_QUOTES) for key, equals, value in pairs if equals}


def error_object(version: str, error: CniError) -> bytes:
    """What goes to the runtime, in the version of its configuration."""
    document: dict[str, object] = {
        "cniVersion": version if version in VERSIONS else LATEST,
        "code": int(error.code),
        "msg": error.message[:_LONGEST_WORDS],
    }
    if error.details:
        document["details"] = error.details[:_LONGEST_WORDS]
    return msgspec.json.encode(document)


def version_of(stdin: bytes) -> str:
    """The version of a configuration, the latest one where it cannot be read."""
    try:
        return msgspec.json.decode(stdin, type=_Version).cni_version or LATEST
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return LATEST


def _verb(word: str) -> Verb:
    try:
        return Verb(word)
    except ValueError:
        raise CniError(Code.ENVIRONMENT, f"cannot do CNI_COMMAND {word[:40]!r}") from None


def _conf(stdin: bytes, verb: Verb) -> _Conf:
    try:
        return msgspec.json.decode(stdin, type=_Conf)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if verb in (Verb.DEL, Verb.GC):
            return _Conf()
        raise CniError(Code.DECODE, f"cannot decode the network configuration on stdin: {error}") from error


def _check(attachment: Attachment) -> None:
    container, ifname = attachment.container_id, attachment.ifname
    if not _CONTAINER_ID.fullmatch(container) or len(container) > _LONGEST_ID:
        raise CniError(Code.ENVIRONMENT, f"cannot use CNI_CONTAINERID {container[:80]!r}")
    if not _IFNAME.fullmatch(ifname) or ifname in (".", ".."):
        raise CniError(Code.ENVIRONMENT, f"cannot use CNI_IFNAME {ifname[:80]!r}")
    if not attachment.netns:
        raise CniError(Code.ENVIRONMENT, "cannot do without CNI_NETNS")


def _named(attachment: Attachment, given: dict[str, str]) -> Attachment:
    name = given.get("K8S_POD_NAME", "")
    if not name:
        return attachment
    pod = PodKey(given.get("K8S_POD_NAMESPACE", "") or "default", name)
    return msgspec.structs.replace(attachment, pod=pod, uid=given.get("K8S_POD_UID", ""))


def _ips(result: msgspec.Raw) -> tuple[str, ...]:
    """The pod's addresses, where the plugin before us named them in a shape that is known."""
    try:
        found = msgspec.json.decode(result, type=_Result | None)
        return tuple(str(ip_interface(entry.address).ip) for entry in (found.ips if found else None) or ())
    except (msgspec.DecodeError, ValueError, RecursionError):
        return ()
