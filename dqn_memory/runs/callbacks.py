"""Follow a run from Python while it trains, and stop it.

    class Patience(Callback):
        def on_evaluate(self, trainer, step, score):
            if score.success_rate >= 0.9:
                trainer.stop()

    train(config="demo", callbacks=[Patience()])

The command line has no callbacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dqn_memory.runs.errors import UserError

if TYPE_CHECKING:
    from dqn_memory.play import Score
    from dqn_memory.runs.trainer import Trainer


class Callback:
    """Receives what happens in a run; a method that a subclass leaves out does nothing.

    Calls come after all work of their step: first those of the log line, then those of the evaluation and of the
    checkpoint, each to all callbacks in the order of their list. `trainer.stop()` ends training after the calls of the
    step, as `--stop-at-success` does: a checkpoint, then the final evaluation. An exception ends the run at once, with
    a checkpoint and without an evaluation. After both `train(resume=run)` continues the run.
    """

    def on_log(self, trainer: Trainer[Any], step: int, scalars: Mapping[str, float]) -> None:
        """Receive the metrics of a log line (`--log-every`)."""

    def on_evaluate(self, trainer: Trainer[Any], step: int, score: Score) -> None:
        """Receive the score of an evaluation (`--evaluate-every`); `train` returns that of the final one."""

    def on_checkpoint(self, trainer: Trainer[Any], step: int, run: Path) -> None:
        """Receive the run's folder after a checkpoint (`--checkpoint-every`), and after the run's last one."""


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Raise a UserError for an object that is no callback."""
    if not isinstance(callbacks, list | tuple):
        raise UserError(f"callbacks is {callbacks!r:.99}; give a list of objects of subclasses of Callback")
    for number, callback in enumerate(callbacks):
        if not isinstance(callback, Callback):
            raise UserError(f"callbacks[{number}] is {callback!r:.99}; give an object of a subclass of Callback")


class Events:
    """Collects the events of a step for callbacks."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self.callbacks = callbacks
        self.waiting: list[tuple[str, Any]] = []  # name of the method, and its last argument

    def add(self, name: str, value: Any) -> None:
        """Note an event of the current step."""
        self.waiting.append((name, value))

    def tell(self, trainer: Trainer[Any]) -> None:
        """Call the callbacks for all events that wait."""
        events, self.waiting = self.waiting, []
        for name, value in events:
            for callback in self.callbacks:
                getattr(callback, name)(trainer, trainer.steps, value)
