"""The code of README.md, docs/ and the notebook runs, every link leads somewhere, and every flag named there exists."""

import json
import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from mutations import copy_tracked
from nbclient import NotebookClient
from pages import PAGES, Q_BUDGET, ROOT, SHELL, Block, anchors, blocks, code, cut, help_of, links, shorten

RUN = ("python", "toml", *SHELL)
TEXT = ("", "text", "cpp")  # output, a formula, or a file for a compiler
SHORT = ("docs/memories.md",)
README = (ROOT / "README.md").read_text().splitlines()
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
FEW = 4  # blocks that nothing can run
UNNAMED = (  # scripts that no page calls, and a few calls that no page makes
    "dqn_memory.benchmark --quick --only rollouts",
    "dqn_memory.study.report results/studies/smoke",
    "envs.benchmark --quick --env POMDP/CarFlag-v0",
    "world_models.benchmark glam --quick --device cpu --only phases",
    "world_models.benchmark unizero --quick --device cpu --only acting",
    "world_models.parameters glam",
    "world_models.parameters unizero",
)
NAMES = {page: str(page.relative_to(ROOT)) for page in PAGES}
EACH = pytest.mark.parametrize("page", PAGES, ids=NAMES.values())


def runs(block: Block) -> bool:
    """Whether it is code, or a file that code reads."""
    return block.language in RUN or bool(block.title)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """A repository with one commit of all that git knows or would know here."""
    folder = tmp_path_factory.mktemp("clean")
    copy_tracked(folder)
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "all"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


@pytest.fixture
def checkout(clean, tmp_path):
    subprocess.run(["git", "clone", "-q", clean, tmp_path / "checkout"], check=True)
    return tmp_path / "checkout"


def left_behind(checkout: Path, *flags: str) -> list[str]:
    """What git sees in a checkout that it did not see before, a line each."""
    return subprocess.check_output(["git", "status", "--porcelain", *flags], cwd=checkout, text=True).splitlines()


def environment(checkout: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    offline = {"MPLBACKEND": "Agg", "WANDB_MODE": "offline", "WANDB_SILENT": "true", "OMP_NUM_THREADS": "1"}
    return os.environ | offline | {"PATH": path, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=name, marks=[pytest.mark.long] * (name not in SHORT)) for page, name in NAMES.items()
     if any(map(runs, blocks(page)))],
)  # fmt: skip
def test_all_code_of_the_page_runs_and_leaves_the_checkout_clean(page, checkout, tmp_path, record_property):
    shown = [block for block in blocks(page) if runs(block) and not block.not_run]
    left_out = [block for block in shown if block.needs and not find_spec(block.needs)]
    steps = [(block.place, block.language, block.title, cut(block)) for block in shown if block not in left_out]
    (tmp_path / "steps.json").write_text(json.dumps([steps, Q_BUDGET]))
    session = [sys.executable, str(Path(__file__).with_name("session.py")), str(tmp_path / "steps.json")]
    done = subprocess.run(
        session, cwd=checkout, env=environment(checkout), capture_output=True, text=True, timeout=600,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    assert set(left_behind(checkout)) <= {f"?? {block.title}" for block in shown if block.title}
    if left_out:
        record_property("not installed", ", ".join(sorted({block.needs for block in left_out})))


@pytest.mark.long
@pytest.mark.parametrize("command", UNNAMED)
def test_a_script_that_no_page_calls_leaves_the_checkout_clean_too(command, checkout):
    words = [sys.executable, "-m", *command.split()]
    done = subprocess.run(words, cwd=checkout, env=environment(checkout), capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip(), f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert [line for line in left_behind(checkout, "--ignored") if not line.endswith(("runs/", "__pycache__/"))] == []


def test_few_blocks_cannot_run_and_each_says_why():
    kept = [block for page in PAGES for block in blocks(page) if block.not_run or block.language not in (*RUN, *TEXT)]
    assert [block.place for block in kept if not block.not_run] == []
    assert len(kept) <= FEW, [(block.place, block.not_run) for block in kept]


@EACH
def test_no_command_stands_outside_a_block_that_runs(page):
    fenced = re.sub(r"^( *)```.*?^\1``` *$", "", page.read_text(), flags=re.M | re.S)
    assert re.findall(r"^ {4,}(?:python|make|pip) .*", fenced, re.M) == []


@EACH
def test_every_relative_link_and_anchor_exists(page):
    for target in links(page):
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or found.suffix != ".md" or anchor in anchors(found), target


SCRIPTS = sorted(
    {module for page in PAGES for span in code(page) for module in re.findall(r"python3? -m ([\w.]+)", span)}
    - {"pip", "venv", "pytest"}
)
TRAINERS = ("dqn_memory.train", "world_models.unizero.train", "world_models.glam.train")


@EACH
def test_every_script_and_flag_that_the_page_names_exists(page):
    every = "".join(map(help_of, [*SCRIPTS, *TRAINERS])) + "--help"
    for span in code(page):
        if span.startswith(("pip ", "git ", "ray ", "wandb ", "tensorboard ")):
            continue
        module = re.search(r"python3? -m ([\w.]+)", span)
        known = help_of(module[1]) + "--help --resume --config" if module and module[1] in SCRIPTS else every
        for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", span):
            assert re.search(rf"{flag}(?![\w-])", known), f"{flag} in {span!r}"


@pytest.mark.long
def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{Path(__file__).parent}")
    notebook = nbformat.read(NOTEBOOK, 4)
    for cell in notebook.cells:
        cell.source = shorten(cell.source)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(f"import session; session.limit({Q_BUDGET})"))
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 3


def test_the_notebook_is_small_and_says_nothing_of_the_machine_it_ran_on():
    text = NOTEBOOK.read_text()
    assert len(text) < 300_000
    assert "/home/" not in text and "/tmp/" not in text and "Traceback" not in text


def test_the_readme_is_short():
    assert len(README) <= 150


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().removeprefix("|").removesuffix("|").split("|")]


def test_the_table_of_the_readme_is_that_of_the_results():
    section = "\n".join(README).partition("## Which memory when")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    lines = (ROOT / "results/README.md").read_text().splitlines()
    assert len(rows) > 5 and set(rows[:-3]) <= set(lines)
    names, *costs = (cells(row)[2:] for row in (rows[0], *rows[-3:]))
    recorded = {cells(line)[0]: cells(line)[2:] for line in lines if line.startswith("|") and len(cells(line)) == 5}
    assert [recorded[name] for name in names] == [list(each) for each in zip(*costs, strict=True)]


def test_the_suite_lists_its_commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["dqn_memory"])
    runpy.run_module("dqn_memory", run_name="__main__")
    listed = capsys.readouterr().out
    for name in ("dqn_memory.ppo", "dqn_memory.study.run", "envs.baselines", "world_models.glam.train"):
        assert f"python -m {name} " in listed


@pytest.mark.parametrize("place", ["runs/notebook/config.toml", "docs/runs/notebook/config.toml", "runs/reports/x.md"])
def test_what_the_notebook_and_reports_write_leaves_the_checkout_clean(place):
    assert subprocess.run(["git", "-C", str(ROOT), "check-ignore", "-q", place]).returncode == 0
