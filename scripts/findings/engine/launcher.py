"""Starts an engine so that it cannot outlive the process that asked for it; replaced by the engine with exec.

usage: launcher.py PARENT_PID ADDRESS_SPACE_BYTES|0 PROGRAM [ARGUMENT ...]

A session and process group of its own (so that a terminal's Ctrl-C and our own kill of the group both reach exactly
the engine), and on Linux the parent-death signal SIGKILL, which survives exec and works after `kill -9` of the parent.
Only the standard library: it runs under any Python, with -I -S, in about 15 ms.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

PR_SET_PDEATHSIG = 1
NOT_STARTED = 127


def main() -> int:
    """Set up this process and become the engine; the exit code 127 says that the program could not be started."""
    parent, limit, argv = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if os.getsid(0) != os.getpid():
        os.setsid()
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the signal was asked for
            return NOT_STARTED
    if resource is not None:
        if limit > 0:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        with suppress(OSError, ValueError):  # a core file of an engine is as large as its model
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        os.execv(argv[0], argv)  # noqa: S606 - no shell wanted
    except OSError as error:
        print(f"error: cannot start {argv[0]}: {error.strerror}", file=sys.stderr)
        return NOT_STARTED


if __name__ == "__main__":
    sys.exit(main())
