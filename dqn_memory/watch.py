"""Watch an agent play: `python -m dqn_memory.watch memory-7x7`.

RUN is a run folder or the name of an agent in the package (demo, memory-7x7, car-flag). The environment is shown beside
the agent's actions, its Q-values and the attention of each decision: in a window if there is a display, else in the
terminal, or as a file (--video episode.gif). In the window, space pauses the episode, the arrows go step by step, and q
closes it. A terminal without colours shows the environment's own text.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
import tyro
from rich.console import Console
from rich.live import Live

from dqn_memory.analysis.console import plain_screen, screen
from dqn_memory.analysis.episodes import Episode, action_names, play_each
from dqn_memory.analysis.video import LAST_MS, Looks, check_target, save_video, video_page
from dqn_memory.evaluate import load_network, setup_in
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.folder import RunArgument
from dqn_memory.runs.settings import Bounds, check_numbers
from envs.console import say

if TYPE_CHECKING:
    import tkinter

Watched = Iterator[tuple[Episode, Looks | None]]


@dataclass(frozen=True)
class Args(RunArgument):
    """Watch episodes of an agent of one network, with the attention of each decision."""

    env: str | None = None
    """Another environment with the same observations and actions (None: that of training; of several the first)."""
    on: Literal["auto", "window", "terminal"] = "auto"
    """Where episodes are shown (auto: in a window if there is a display, else in the terminal)."""
    video: str | None = None
    """Write a file instead: a path that ends in .gif, or in .png for an animated PNG."""
    overwrite: bool = False
    """Let the video replace an existing file."""
    episodes: Annotated[int, Bounds(1, 10**9)] = 1
    """Episodes, one after the other."""
    seed: Annotated[int, Bounds(0, below=2**63)] = 0
    """Seed of the environment (its low 32 bits on a CPU) and of drawn actions."""
    initial: int | None = None
    """Number of the first episode's initial state; for environments with finitely many."""
    reset_memory: bool = False
    """Reset the memory before each step, to watch the agent without it."""
    delay: Annotated[float, Bounds(0, 60)] = 0.4
    """Seconds that a step is shown."""


def watched(args: Args) -> tuple[Watched, tuple[str, ...]]:
    """Make a generator that plays the episodes; also give names for the actions."""
    network, config, _ = load_network(args.chosen_run())
    setup = replace(setup_in(args.env, config, network, torch.device("cpu")), reset_memory=args.reset_memory)

    def play() -> Watched:
        for episode in play_each(setup, network, args.seed, args.episodes, args.initial, draw=True):
            looks = None if args.reset_memory else Looks.of_episode(network, episode, config.acting_state)
            yield episode, looks

    return play(), action_names(setup)


# ---- in a window -----------------------------------------------------------------------------------------------------
class Window:
    """Shows one episode after the other, and stays with the last one until it is closed."""

    def __init__(self, root: tkinter.Tk, played: Watched, actions: Sequence[str], delay: float) -> None:
        import tkinter

        self.root, self.played, self.actions, self.delay = root, played, actions, delay
        self.number = self.step = 0
        self.paused = False
        self.label = tkinter.Label(root)
        self.label.pack()
        for keys, act in (("q Escape", self.close), ("space", self.pause), ("Left", self.back), ("Right", self.on)):
            for key in keys.split():
                root.bind(f"<{key}>", act)
        self.next_episode()
        self.tick()

    def next_episode(self) -> None:
        """Start the next episode, if there is one."""
        following = next(self.played, None)
        if following is None:
            return
        (self.episode, self.look), self.number, self.step = following, self.number + 1, 0
        self.show()

    def show(self) -> None:
        """Draw the step."""
        from PIL import ImageTk

        self.picture = ImageTk.PhotoImage(video_page(self.episode, self.step, self.number, self.actions, self.look))
        self.label.configure(image=self.picture)

    def tick(self) -> None:
        """Schedule the next step."""
        last = self.step == len(self.episode)
        self.root.after(LAST_MS if last else max(1, round(1000 * self.delay)), self.go_on)

    def go_on(self) -> None:
        """Show the next step, or episode, unless paused."""
        if not self.paused and self.step == len(self.episode):
            self.next_episode()
        elif not self.paused:
            self.on()
        self.tick()

    def pause(self, _: Any) -> None:
        self.paused = not self.paused

    def back(self, _: Any) -> None:
        self.paused, self.step = True, max(0, self.step - 1)
        self.show()

    def on(self, event: Any = None) -> None:
        self.paused, self.step = self.paused or event is not None, min(len(self.episode), self.step + 1)
        self.show()

    def close(self, _: Any) -> None:
        self.root.destroy()


def open_window() -> tkinter.Tk | None:
    """Open an empty window; None without a display or without tkinter."""
    try:
        import tkinter

        return tkinter.Tk()
    except (ImportError, RuntimeError):
        return None
    except tkinter.TclError:
        return None


# ---- in the terminal -------------------------------------------------------------------------------------------------
def show_in_terminal(played: Watched, actions: Sequence[str], delay: float, console: Console) -> None:
    """Show each step in place of the previous one, or below it if the terminal has no colours."""
    plain = console.color_system is None
    for number, (episode, look) in enumerate(played, 1):
        steps = range(len(episode) + 1)
        if plain:
            for step in steps:
                say(plain_screen(episode, step, number, actions, look))
            continue
        with Live(console=console, auto_refresh=False) as live:
            for step in steps:
                size = console.width, console.height
                live.update(screen(episode, step, number, actions, look, size), refresh=True)
                time.sleep(delay)


def show(args: Args, played: Watched, actions: Sequence[str]) -> None:
    """Show the episodes in a window or in the terminal."""
    root = None if args.on == "terminal" else open_window()
    if root is not None:
        root.title(f"{args.chosen_run()}: space pauses, arrows step, q closes")
        Window(root, played, actions, args.delay)
        root.mainloop()
    elif args.on == "window":
        raise UserError("--on window: there is no display, or no tkinter; use --on terminal or --video episode.gif")
    elif args.on == "auto" and not sys.stdout.isatty():
        raise UserError("there is neither a display nor a terminal; use --video episode.gif, or --on terminal for text")
    else:
        show_in_terminal(played, actions, args.delay, Console())


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Play, then show."""
    args = tyro.cli(Args, args=argv, prog="python -m dqn_memory.watch")
    check_numbers(args)
    if args.video is not None:
        check_target(Path(args.video), args.overwrite)
    played, actions = watched(args)
    if args.video is not None:
        episodes, looks = zip(*played, strict=True)
        save_video(Path(args.video), episodes, actions, looks, round(1000 * args.delay))
        say(f"wrote {args.video}")
        return
    try:
        show(args, played, actions)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
