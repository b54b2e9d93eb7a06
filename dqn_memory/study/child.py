"""Start a trainer that ends with its parent: `python -I -S child.py PARENT COMMAND...`, standard library only.

A trainer must not outlive its worker, because another worker continues the run. Linux kills it with the worker. On
other systems the lock of the run shows that the trainer still lives. Windows does not use this file.
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
    if os.getppid() != parent:  # the parent ended before the line above
        sys.exit(1)
    os.execv(command[0], command)
