"""Memory that the C library keeps, though nobody uses it any more.

What gRPC holds for a flood of calls lies scattered over the arenas of its threads, and glibc gives hardly any
of it back by itself: after one flood the process would stay at hundreds of MiB for ever. Another C library
than glibc has none of these calls, and is left alone.
"""

import ctypes

PLENTY = 64 << 20
"""Free bytes from which on they are given back."""

_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]


_libc = ctypes.CDLL(None)
_GLIBC = hasattr(_libc, "mallinfo2")
if _GLIBC:
    _libc.mallinfo2.restype = _Mallinfo2


def give_back() -> None:
    """Return free memory to the kernel, if there is plenty. It takes some 10 ms for each 100 MiB, in which
    other threads may have to wait for memory."""
    if _GLIBC and _libc.mallinfo2().fordblks > PLENTY:
        _libc.malloc_trim(0)
