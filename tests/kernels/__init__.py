"""The product on Debian 12's own kernel: `make test-kernel`, as root on an amd64 Debian 12.

Debian's kernel package is unpacked (never installed) below `.venv/kernels` and booted by qemu, which
translates every instruction, so no KVM is needed; the guest is 10 to 25 times slower than its host.
The guest has the host's root file system, this tree included, read-only over 9p, under an overlay that
it may write to and that is lost with it. So it runs the same nft, Python and virtual environment, on
another kernel. `guest.PARTS` says what runs there; the exit status is that of the guest's run.

What Debian's 6.1 lacks are owned tables (table flags owner and persist): what tests of them need is
probed, and they are skipped there. All else must pass.

    python -m tests.kernels                               every part
    python -m tests.kernels drift tests/node              one of them, and more: any path for pytest
    python -m tests.kernels --package linux-image-NAME    another kernel that apt knows
"""
