"""How far a long run is: a bar on a terminal, a plain line now and then elsewhere."""

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar

from envs.terminal import one_line

FIRST = {"success": 0, "return": 0, "evaluated": 1, "loss": 2}  # the rest follows in the order of its first mention


class Progress:
    """Shows the phase, steps, steps/s in this phase, success in training and evaluated, loss and time left.

    with Progress(total=config.steps, start=step) as progress:
        progress.update(step, "training", success=0.5, loss=0.01)

    A scalar stays on show until it is given anew. `interval` is the seconds between plain lines.
    """

    def __init__(
        self,
        total: int,
        start: int = 0,
        title: str = "",
        interval: float = 5.0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.start, self.title, self.interval = total, start, one_line(title), interval
        self._console = console or Console(stderr=True, force_jupyter=False)  # there, every line would be an output
        self._clock = clock
        self._phase = ""
        self._scalars: dict[str, float] = {}
        self._step = self._shown = start
        self._began = self._last = clock()
        self._bar = self._make_bar() if self._console.is_terminal else None
        self._task = self._bar.add_task(self.title, total=total, completed=start, facts="") if self._bar else None

    def update(self, step: int, phase: str = "training", **scalars: float) -> None:
        """Tell the step reached and the newest scalars; cheap enough for every iteration."""
        if self._phase not in ("", phase):  # the speed of one says nothing about the next
            self.start, self._began = self._step, self._clock()
        self._step, self._phase = step, phase
        self._scalars.update(scalars)
        if self._bar is not None and self._task is not None:
            named = f"{self.title} {phase}".strip()
            self._bar.update(self._task, completed=step, description=named, facts=self._facts())
        elif self._clock() - self._last >= self.interval:
            self._print()

    def __enter__(self) -> Self:
        self._began = self._last = self._clock()
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._step != self._shown:
            self._print()

    def _make_bar(self) -> Bar:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
        facts = TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[facts]}", markup=False)
        return Bar(*columns, facts, console=self._console, refresh_per_second=4)

    def _print(self) -> None:
        self._last, self._shown = self._clock(), self._step
        share = min(1.0, self._step / self.total) if self.total else 1.0
        line = f"{self.title} {self._phase} {self._step:,}/{self.total:,} ({share:.0%}) {self._facts()}".lstrip()
        self._console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def _facts(self) -> str:
        names = sorted(self._scalars, key=lambda name: FIRST.get(name, len(FIRST)))
        scalars = [f"{name} {self._scalars[name]:.3g}" for name in names]
        return " ".join([f"{self._rate():,.0f} steps/s", *scalars, *self._left()])

    def _rate(self) -> float:
        return (self._step - self.start) / max(self._clock() - self._began, 1e-9)

    def _left(self) -> list[str]:
        if self._phase == "prefill" or self._step <= self.start:  # learning will be slower
            return []
        seconds = round(max(0, self.total - self._step) / self._rate())
        return [f"left {seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"]


def due(steps: int, every: int, per_iteration: int) -> bool:
    """Whether a multiple of `every` was passed by the last iteration."""
    return every > 0 and steps // every > (steps - per_iteration) // every
