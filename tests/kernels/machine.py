"""A guest: one qemu process that translates every instruction, with the host's files read-only."""

import subprocess
from collections.abc import Generator
from pathlib import Path

import msgspec

from tests.kernels.debian import Kernel

KERNEL_LINE = "console=ttyS0 loglevel=4 panic=-1 mitigations=off"
"""A panic ends the machine at once; its last words are in the console's log. Page-table isolation would
make each system call throw qemu's translations away, and so double all times."""


class Guest(msgspec.Struct, frozen=True):
    """`environment`: of process 1. `console`: file for the kernel's log. `seconds`: its longest life."""

    kernel: Kernel
    initramfs: Path
    environment: dict[str, str]
    console: Path
    seconds: int

    def command(self) -> list[str]:
        """The second serial line, which process 1 writes to, is the command's standard output."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return [
            "timeout", "--kill-after=5", str(self.seconds),
            "nice",
            "qemu-system-x86_64",
            "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2048",
            "-nodefaults", "-no-reboot", "-display", "none",
            "-kernel", str(self.kernel.image),
            "-initrd", str(self.initramfs),
            "-append", " ".join([KERNEL_LINE, *variables]),
            "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
            "-serial", f"file:{self.console}",
            "-serial", "stdio",
        ]  # fmt: skip

    def run(self) -> Generator[str, None, None]:
        """What the guest writes, line by line as it comes. Leaving the iteration early ends the guest."""
        with subprocess.Popen(
            self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    yield line.rstrip()
            finally:
                process.terminate()
