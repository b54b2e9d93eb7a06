"""Show the progress of a long run: a bar on a terminal, otherwise a plain line every few seconds."""

import time
from collections import deque
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar

from envs.console import one_line

WINDOW = 60.0  # min seconds over which the speed is measured
FIRST = {"success": 0, "return": 0, "evaluated": 1, "loss": 2}  # order of the scalars; others follow


class Pace:
    """Steps per second over the last half of a phase, or over its last minute if that is longer.

    `first` is the speed of the phase's first iteration. It is shown until the second one ends. It does not count
    later, because the first iteration compiles.
    """

    def __init__(self, now: float, step: int, first: float = 0.0) -> None:
        self.began, self.first = now, first
        self.marks = deque([(now, step)])  # times and steps; the pace is counted from the first one

    def mark(self, now: float, step: int) -> None:
        """Record the time of a step."""
        age = now - self.began
        if now - self.marks[-1][0] >= max(1.0, age / 100):
            self.marks.append((now, step))
            while len(self.marks) > 2 and self.marks[1][0] <= now - max(WINDOW, age / 2):
                self.marks.popleft()

    def known(self, step: int) -> bool:
        """Tell whether a second iteration has ended."""
        return step > self.marks[0][1]

    def rate(self, now: float, step: int) -> float:
        """Give steps per second."""
        then, before = self.marks[0]
        return (step - before) / max(now - then, 1e-9) if self.known(step) else self.first


class Progress:
    """Shows the phase, steps, steps/s in this phase, scalars such as success and loss, and the time left.

    with Progress(total=config.steps, start=step) as progress:
        progress.update(step, "training", success=0.5, loss=0.01)

    A scalar is shown until it gets a new value. `interval` is the seconds between plain lines. The time left is shown
    while training, from the second iteration on.
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
        self.total, self.title, self.interval = total, one_line(title), interval
        self._console = console or Console(stderr=True, force_jupyter=False)  # Jupyter would make an output per line
        self._clock = clock
        self._phase, self._end, self._over = "", total, False
        self._scalars: dict[str, float] = {}
        self._step = self._shown = start
        self._now = self._last = clock()
        self._pace = Pace(self._now, start)
        self._bar = self._make_bar() if self._console.is_terminal else None
        self._task = self._bar.add_task(self.title, total=total, completed=start, facts="") if self._bar else None

    def update(self, step: int, phase: str = "training", end: int | None = None, **scalars: float) -> None:
        """Show the step and the newest scalars; cheap enough for every iteration.

        `end` is the last step of the phase (None: the last one of the run).
        """
        now = self._clock()
        if self._phase != phase and (self._phase or phase == "training"):  # each phase has its own speed
            self._pace = Pace(now, step, (step - self._step) / max(now - self._now, 1e-9))
        else:
            self._pace.mark(now, step)
        self._now, self._step, self._phase, self._end = now, step, phase, self.total if end is None else end
        self._scalars.update(scalars)
        if self._bar is not None and self._task is not None:
            title = f"{self.title} {phase}".strip()
            self._bar.update(self._task, completed=step, total=self._end, description=title, facts=self._facts())
        elif now - self._last >= self.interval:
            self._print()

    def __enter__(self) -> Self:
        self._now = self._last = self._clock()
        self._pace = Pace(self._now, self._step)
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, facts=self._facts())
            self._bar.stop()
        elif self._step != self._shown:
            self._print()

    def _make_bar(self) -> Bar:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
        facts = TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[facts]}", markup=False)
        return Bar(*columns, facts, console=self._console, refresh_per_second=4)

    def _print(self) -> None:
        self._last, self._shown = self._clock(), self._step
        share = min(1.0, self._step / self._end) if self._end else 1.0
        line = f"{self.title} {self._phase} {self._step:,}/{self._end:,} ({share:.0%}) {self._facts()}".lstrip()
        self._console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def _facts(self) -> str:
        names = sorted(self._scalars, key=lambda name: FIRST.get(name, len(FIRST)))
        scalars = [f"{name} {self._scalars[name]:.3g}" for name in names]
        rate = self._pace.rate(self._now, self._step)
        return " ".join([f"{rate:,.0f} steps/s" if rate >= 10 else f"{rate:.2g} steps/s", *scalars, *self._left(rate)])

    def _left(self, rate: float) -> list[str]:
        left = max(0, self.total - self._step)
        if self._phase != "training" or not self._pace.known(self._step) or (self._over and left):
            return []
        seconds = round(left / rate)
        return [f"left {seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"]


def due(steps: int, every: int, per_iteration: int) -> bool:
    """Tell whether the last iteration passed a multiple of `every`."""
    return every > 0 and steps // every > (steps - per_iteration) // every
