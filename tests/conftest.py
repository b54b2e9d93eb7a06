"""What several files of tests share: a finished study; and what tests counted is said at the end, passed or not."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for every test that recorded properties."""
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        if report.when == "call" and report.user_properties:
            counted = ", ".join(f"{name} {value}" for name, value in report.user_properties)
            terminalreporter.write_line(f"{report.nodeid}: {counted}")


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What tests start is remembered in a folder of theirs, not in that of who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("state")
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a test, which is its `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from reported import HALLWAY, MEMORY, TWO, make_study, noisy  # here: tests of the worlds need no core

    folder = tmp_path_factory.mktemp("made") / "small"
    make_study(folder, [MEMORY, HALLWAY], TWO, [1, 2], noisy({"dgfqn": 0.1}))
    return folder


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path) -> Path:
    """A finished study that a test may change."""
    return Path(shutil.copytree(finished_once, tmp_path / "small"))
