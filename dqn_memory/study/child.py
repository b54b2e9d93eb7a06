"""Becomes a trainer that ends with its parent: `python -I -S child.py PARENT COMMAND...`, standard library only.

Where a worker is killed its trainer must not live on, for another worker takes the run over. Linux sends the signal;
elsewhere a trainer that outlived its worker is noticed by the lock that it holds. Windows goes without this file.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h

if __name__ == "__main__":
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the signal was asked for
        sys.exit(1)
    os.execv(command[0], command)
