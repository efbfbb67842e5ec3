"""Pods of manifest files, with what bears on them, for commands that need no agent."""

import sys
from pathlib import Path

import click
import msgspec

from agent.core.cluster import Cluster
from agent.core.names import PodKey
from agent.core.objects import Object, Pod, Put
from agent.core.redirect import derive
from agent.core.spec import Derivation, NodeDefaults
from agent.files.manifests import ManifestError, parse

LARGEST = 8 << 20


class Entry(msgspec.Struct, frozen=True):
    """A pod as it was written, and what follows from it."""

    pod: Pod
    derivation: Derivation


def derivations(files: tuple[str, ...], defaults: NodeDefaults) -> tuple[Entry, ...]:
    """All pods of the files, in order; their Namespaces and Services are taken into account, wherever
    they stand. Raises click.UsageError for a file that cannot be read, and when there is no pod."""
    cluster, pods = Cluster(), []
    for file in files:
        for item in _read(file):
            if isinstance(item, Pod):
                pods.append(item)
            else:
                cluster.apply(Put(item))
    if not pods:
        raise click.UsageError(f"cannot find a pod in {', '.join(files)}: write an object of kind Pod")
    ports = cluster.api_server_ports()
    return tuple(Entry(pod, derive(pod, cluster.namespace_of(pod), defaults, ports)) for pod in pods)


def pick(entries: tuple[Entry, ...], pod: PodKey | None) -> tuple[Entry, ...]:
    """All entries, or the one of that name. Raises click.UsageError when there is none."""
    if pod is None:
        return entries
    for entry in entries:
        if entry.pod.key == pod:
            return (entry,)
    there = ", ".join(str(entry.pod.key) for entry in entries)
    raise click.UsageError(f"cannot find pod {pod} in the files: they hold {there}")


def _read(file: str) -> tuple[Object, ...]:
    try:
        return parse(_text(file))
    except UnicodeDecodeError as error:
        raise click.UsageError(f"cannot use {_name(file)}: byte {error.start} is no UTF-8 text") from error
    except (ManifestError, ValueError) as error:
        raise click.UsageError(f"cannot use {_name(file)}: {error}") from error
    except OSError as error:
        raise click.UsageError(f"cannot read {_name(file)}: {error.strerror}; name a manifest") from error


def _text(file: str) -> str:
    if file == "-":
        data = sys.stdin.buffer.read(LARGEST + 1)
    else:
        path = Path(file)
        if path.exists() and not path.is_file() and not path.is_fifo():
            raise ManifestError("it is no file; name a manifest")
        with path.open("rb") as stream:
            data = stream.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ManifestError(f"it is larger than {LARGEST >> 20} MiB")
    return data.decode("utf-8")


def _name(file: str) -> str:
    return "stdin" if file == "-" else file
