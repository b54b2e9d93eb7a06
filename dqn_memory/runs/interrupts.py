"""Delay Ctrl-C and SIGTERM until a checkpoint is written."""

import signal
import sys
import threading
from typing import Any, Self

from envs.console import say


class Interrupts:
    """Delay Ctrl-C and SIGTERM until the run is in a consistent state; a second signal stops at once.

    with Interrupts() as interrupts:
        while not interrupts.received:
            step()

    It does nothing outside the main thread of a process.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in self.SIGNALS}
            self._before = {number: old for number, old in handlers.items() if old is not signal.SIG_IGN}
            for number in self._before:
                signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, old in self._before.items():
            signal.signal(number, old)

    def _note(self, number: int, frame: object) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True
        say("stopping after a checkpoint; once more stops at once", file=sys.stderr)
