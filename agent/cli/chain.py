"""Shim and entry of this node, to be taken out: with the running agent that keeps them, or in its place."""

from pathlib import Path
from typing import Protocol

import click

from agent.cli.client import Agent
from agent.cli.output import printable
from agent.cni.install import CannotInstallError, CniSettings, Inspection, Installer
from agent.core.chain import TYPE


class Chain(Protocol):
    """`there`: paths of what is of ours, or has our entry. `remove` takes the entries out, then the shim, and
    returns the paths of what it changed. Both raise click.ClickException."""

    def there(self) -> tuple[str, ...]: ...

    def remove(self) -> tuple[str, ...]: ...


class KeptChain:
    """That which a running agent keeps, and would put back. `found`: as it says."""

    def __init__(self, agent: Agent, found: Inspection) -> None:
        self._agent = agent
        self._found = found

    def there(self) -> tuple[str, ...]:
        found = self._found
        entry = [f"{found.conf_dir}/{found.holder}"] if found.position is not None else []
        return (*entry, *([f"{found.bin_dir}/{TYPE}"] if found.shim != "missing" else []))

    def remove(self) -> tuple[str, ...]:
        return self._agent.unchain()


class BareChain:
    """That which is in the directories, whoever put it there."""

    def __init__(self, conf_dir: Path, bin_dir: Path) -> None:
        self._installer = Installer(CniSettings(conf_dir=conf_dir, bin_dir=bin_dir))

    def there(self) -> tuple[str, ...]:
        try:
            return self._installer.traces()
        except CannotInstallError as error:
            raise click.ClickException(printable(str(error))) from error

    def remove(self) -> tuple[str, ...]:
        try:
            with self._installer.tenancy() as mine:
                if mine:
                    return self._installer.remove().written
        except CannotInstallError as error:
            raise click.ClickException(printable(str(error))) from error
        raise click.ClickException(
            f"cannot take our entry out of {self._installer.settings.conf_dir}: a running process would put "
            "it back; end it first, `pointsman run --install-cni` or `pointsman install-cni --watch`"
        )
