"""Ctrl-C and SIGTERM, held back until a checkpoint is written."""

import signal
import sys
import threading
from typing import Any, Self

from envs.terminal import say


class Interrupts:
    """Hold Ctrl-C and SIGTERM back between two consistent states; a second signal stops at once.

    with Interrupts() as interrupts:
        while not interrupts.asked:
            step()

    Outside a process's main thread it does nothing.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            found = {number: signal.getsignal(number) for number in self.SIGNALS}
            self._before = {number: old for number, old in found.items() if old is not signal.SIG_IGN}
            for number in self._before:
                signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, old in self._before.items():
            signal.signal(number, old)

    def _note(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        say("stopping after a checkpoint; once more stops at once", file=sys.stderr)
