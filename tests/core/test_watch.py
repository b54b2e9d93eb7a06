"""Agents of the package: what they are, how their names are found, how they are made and watched."""

import shutil
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from run_folders import printed, refused
from trained import CARDS, MEMORY, contents, trained

from dqn_memory import inspect, train, watch
from dqn_memory.analysis.console import half_blocks, screen
from dqn_memory.evaluate import load_network
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.folder import AGENTS, Run, agent_names, find_run

QUICK = ("--on", "terminal", "--delay", "0")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run with averaged weights, in an environment with a text."""
    return trained(tmp_path_factory.mktemp("runs") / "run", "--ema-decay", "0.9", env=CARDS)


@pytest.mark.parametrize("name", agent_names())
def test_an_agent_is_small_acts_and_says_how_well_it_plays(name):
    folder = AGENTS / name
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 300_000
    network, config, step = load_network(name)
    last = Run.open(name).metrics()[-1]
    assert step == last["step"] and not network.training and config.output.run is None
    told = (AGENTS / "README.md").read_text()
    row = next(line for line in told.splitlines() if line.startswith(f"| `{name}`"))
    assert f"{last['final/success_rate']:.3f}" in row and f"{last['memory_ablation/success_rate']:.3f}" in row
    made = Run.open(name).environment
    assert made["revision"][:7] in told and made["command"] in told and not made["dirty"]


def test_a_run_of_that_name_here_comes_before_the_agent_and_nothing_else_does(here, run):
    (here / "demo").mkdir()
    assert find_run("demo") == AGENTS / "demo" and find_run("./x/demo").parts == ("x", "demo")
    shutil.copytree(run, here / "demo", dirs_exist_ok=True)
    assert Run.open("demo").path == find_run("demo") == (here / "demo").relative_to(here)


@pytest.mark.usefixtures("here")
def test_a_wrong_name_is_told_the_right_ones_and_no_agent_is_trained_on():
    with pytest.raises(UserError, match=r"dem is no run folder.*agents in the package: .*demo"):
        Run.open("dem")
    with pytest.raises(UserError, match=r"demo is no run folder: it has no config\.toml$"):
        Run.take_up("demo")


def test_inspecting_an_agent_writes_here_and_not_into_the_package(here, capsys):
    before = contents(AGENTS)
    inspect.main(["demo", "--episodes", "1", "--initial", "3"])
    assert (here / "runs" / "inspect" / "demo" / "episode.gif").is_file() and contents(AGENTS) == before
    assert capsys.readouterr().out.startswith("demo at step ")


def test_an_agent_is_not_trained_on_from_a_copy(tmp_path, capsys):
    copy = shutil.copytree(AGENTS / "demo", tmp_path / "copy")
    assert "holds only the files for acting" in refused(capsys, ["--resume", str(copy)], train.main)


def test_a_terminal_without_colours_shows_the_text_of_every_moment(run, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    said = printed(capsys, watch.main, run, *QUICK, "--episodes", 2)
    assert "\x1b" not in said and "Episode 2, step 0, takes " in said
    assert "layer 0 head 1 attends to step 0 (1.00)" in said
    steps = said.count("Q-values: ")
    assert said.count(" # ") and said.count("Episode ") == steps + 2 == said.count(" ended, ") + steps
    assert "attends" not in printed(capsys, watch.main, run, *QUICK, "--reset-memory")


def test_half_blocks_show_two_pixels_a_character():
    frame = np.arange(4 * 2 * 3, dtype=np.uint8).reshape(4, 2, 3)
    text = half_blocks(frame, 2, 80)
    assert text.plain == "▀▀\n▀▀"
    style = text.get_style_at_offset(Console(), 4)
    assert tuple(style.color.triplet) == tuple(frame[2, 1]) and tuple(style.bgcolor.triplet) == tuple(frame[3, 1])


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
def test_a_screen_fits_into_the_terminal(run, size):
    played, actions = watch.watched(watch.Args(str(run)))
    episode, look = next(played)
    for step in (0, len(episode) // 2, len(episode)):
        console = Console(width=size[0], height=size[1], force_terminal=True, color_system="truecolor")
        lines = console.render_lines(screen(episode, step, 1, actions, look, size), pad=False)
        assert len(lines) < size[1] and max(sum(part.cell_length for part in line) for line in lines) <= size[0]


def test_a_video_is_as_long_as_the_delay_says(run, tmp_path, capsys):
    watch.main([str(run), "--video", str(tmp_path / "e.gif"), "--delay", "0.1"])
    video = Image.open(tmp_path / "e.gif")
    assert capsys.readouterr().out == f"wrote {tmp_path / 'e.gif'}\n" and video.info["duration"] == 100
    assert "--overwrite" in refused(capsys, [str(run), "--video", str(tmp_path / "e.gif")], watch.main)


@pytest.mark.parametrize(("flags", "told"), [((), "neither a display nor"), (("--on", "window"), "--on terminal")])
def test_where_nothing_can_be_shown_a_sentence_says_what_can(run, capsys, monkeypatch, flags, told):
    monkeypatch.setattr(watch, "open_window", lambda: None)
    assert told in refused(capsys, [str(run), *flags], watch.main)


def test_a_window_plays_holds_and_goes_by_step(run, monkeypatch):
    tkinter = pytest.importorskip("tkinter", reason="tkinter is not installed (of Debian: python3-tk)")
    image_tk = pytest.importorskip("PIL.ImageTk")
    keys, later, root = {}, [], Mock()
    root.bind, root.after = keys.__setitem__, lambda *due: later.append(due)

    def wait():
        delay, act = later.pop(0)
        act()
        return delay

    monkeypatch.setattr(tkinter, "Label", Mock())
    monkeypatch.setattr(image_tk, "PhotoImage", lambda picture: picture)
    played, actions = watch.watched(watch.Args(str(run), episodes=2))
    window = watch.Window(root, played, actions, 0.25)
    assert wait() == 250 and (window.number, window.step) == (1, 1)
    keys["<space>"](None)
    wait()
    assert window.step == 1  # held
    keys["<Right>"](None)
    keys["<Left>"](None)
    keys["<Left>"](None)
    assert window.step == 0
    keys["<space>"](None)
    while window.number == 1:
        assert len(later) == 1
        wait()
    for _ in range(len(window.episode) + 3):
        wait()
    assert window.step == len(window.episode) and window.number == 2  # stays with the last one
    keys["<q>"](None)
    root.destroy.assert_called_once()


@pytest.mark.parametrize("env", [MEMORY, "CartPole-v1"])
def test_a_network_of_any_environment_that_draws_is_watched(tmp_path, capsys, env):
    pytest.importorskip("pygame")
    run = trained(tmp_path / "run", "--architecture", "drqn", env=env)
    said = printed(capsys, watch.main, run, *QUICK)
    assert ("success, " in said) == (env == MEMORY) == ("sees" in said) and "attends" not in said
    assert " ended, return" in said or env == MEMORY
