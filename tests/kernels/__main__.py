"""python -m tests.kernels [--package NAME] [PART ...]"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from types import FrameType

from tests.kernels.debian import LATEST, Kernel, install_tools, kernel
from tests.kernels.guest import ENDED, PARTS
from tests.kernels.initramfs import initramfs
from tests.kernels.machine import Guest

TREE = Path(__file__).resolve().parents[2]
CACHE = TREE / ".venv" / "kernels"
SECONDS = 1800
"""What a whole run may take."""


def main() -> int:
    """Boot the kernel, show what the guest says, and return its status; 1 for a guest that says none."""
    arguments = _arguments()
    if os.geteuid() != 0:
        print("cannot install packages, nor read all files for the guest: run as root", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):  # a plain end would leave qemu behind
        signal.signal(number, _terminated)
    try:
        install_tools()
        chosen = kernel(arguments.package, CACHE)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    return run(chosen, arguments.parts)


def run(chosen: Kernel, parts: list[str]) -> int:
    """Run the parts in a guest with this kernel. Returns the guest's status."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    print(f"== booting {chosen.release}", flush=True)
    with tempfile.TemporaryDirectory(prefix="pm-kernel-") as directory:
        image, console = Path(directory) / "initramfs", Path(directory) / "console"
        image.write_bytes(initramfs(Path(busybox), chosen.modules, Path(__file__).with_name("init")))
        environment = {"TREE": str(TREE), "MODULES": str(chosen.modules), "PARTS": ",".join(parts)}
        guest = Guest(chosen, image, environment, console, SECONDS)
        status: int | None = None
        with closing(guest.run()) as lines:
            for line in lines:
                if line.startswith(ENDED):
                    status = int(line.removeprefix(ENDED))
                else:
                    print(line, flush=True)
        if status is None:
            print("the guest ended without a verdict; its kernel's last words:", file=sys.stderr)
            print(*console.read_text(errors="replace").splitlines()[-20:], sep="\n", file=sys.stderr)
        return 1 if status is None else status


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.kernels", description="Test on Debian's kernel.")
    parser.add_argument(
        "--package", default=LATEST, help="Debian package of the kernel (default %(default)s)"
    )
    parser.add_argument(
        "parts",
        nargs="*",
        default=list(PARTS),
        metavar="PART",
        help=f"{', '.join(PARTS)} (default: these), or a path for pytest",
    )
    return parser.parse_args()


def _terminated(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
