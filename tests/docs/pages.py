"""What the pages say: their code blocks, cut to a budget of seconds, their links, and the flags that they name.

A page shows a real budget. `cut` makes it small in one way for every language: numbers of the settings in NUMBERS are
replaced wherever they are written (`--total-steps 5000`, `total_steps=5_000`, `total_steps = 5_000`), and the flags in
ADDED are given to scripts that would otherwise use their defaults.
"""

import importlib
import re
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = ("bash", "console", "sh", "shell")
FENCE = re.compile(
    r"(?:<!-- (?P<marker>not run|needs): (?P<reason>[^>]*?) -->\s*\n\s*)?"
    r"^(?P<indent> *)```(?P<language>\w*)(?P<options>[^\n]*)\n(?P<text>.*?)^(?P=indent)``` *$",
    re.M | re.S,
)

NUMBERS = {
    "total_steps": 160, "episodes": 2, "final_episodes": 2, "evaluate_every": 80, "log_every": 40, "n_trials": 2,
    "prepopulate": 0, "learning_starts": 64, "restarts": 1, "updates": 3,
}  # fmt: skip
Q_BUDGET = {
    "total_steps": 160, "prepopulate": 0, "learning_starts": 64, "num_envs": 16, "batch_size": 8,
    "width": 16, "heads": 2, "context": 12, "evaluate_every": 0, "episodes": 2, "final_episodes": 2,
    "memory_ablation": False, "log_every": 40,
}  # fmt: skip
ADDED: dict[str, dict[str, object]] = {
    "dqn_memory.train": Q_BUDGET,
    "dqn_memory.ppo": {"total_steps": 160, "episodes": 2, "final_episodes": 2},
    "dqn_memory.demo": {"config": ROOT / "tests" / "docs" / "smoke.toml"},
    "dqn_memory.inspect": {"episodes": 2, "moments": 2, "no-frames": True},
    "dqn_memory.watch": {"on": "terminal", "delay": 0},
    "dqn_memory.parameters": {"env": "Gridverse/Memory-5x5-v0", "architecture": "dgfqn"},
    "envs.memoryless": {"restarts": 1, "episodes": 20, "sweeps": 1},
    "envs.baselines": {"episodes": 20},
    "world_models.unizero.train": {"config": "unizero/smoke"},
    "world_models.glam.train": {"config": "glam/smoke", "env": "Pixel/BlinkingCatch-v0"},
    "world_models.glam.inspect": {"imagined": 2},
}
WORLD_MODEL = {"num_eval_envs": 2, "episodes_per_env": 1}  # what evaluate gets where a run's name says unizero or glam
MAKE = {"make demo": "python -m dqn_memory.demo"}
# What installs, or is the run that this test belongs to; everything that it would install is there. And what takes
# minutes, and is run by tests/study/test_diagnose.py.
DONE = (
    "pip install", "python -m pip", "python -m venv", "python3 -m venv", "git clone", "cd ", "source ", "wandb login",
    "make ", "ray start", "tensorboard", "python -m dqn_memory.diagnose",
)  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A fenced block: `title` names the file that it stands in, `not_run` says why it cannot run."""

    page: Path
    line: int
    language: str
    title: str
    text: str
    not_run: str
    needs: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """List a page's fenced blocks."""
    text, found = page.read_text(), []
    for fence in FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', fence["options"])
        marked = {fence["marker"]: fence["reason"]}
        line = text.count("\n", 0, fence.start("language")) + 1
        kept = title[1] if title else "", dedent(fence["text"]), marked.get("not run", ""), marked.get("needs", "")
        found.append(Block(page, line, fence["language"], *kept))
    return found


def cut(block: Block) -> str:
    """Give a block's text with the budget of a test."""
    text = shorten(block.text)
    return "\n".join(map(_command, commands(text))) if block.language in SHELL else text


def shorten(text: str) -> str:
    """Write the small numbers of settings in place of the real ones."""
    for name, number in NUMBERS.items():
        flag = name.replace("_", "-")
        text = re.sub(rf"(--{flag}[ =]|\b{name} ?= ?)[\d_]+\b", rf"\g<1>{number}", text)
    return text


def commands(text: str) -> list[str]:
    """List the command lines of a shell block, without prompts, comments and continuations."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    lines = [re.sub(r"\s+# .*", "", line.removeprefix("$ ")).strip() for line in lines]
    return [line for line in lines if line and not line.startswith("#")]


def _command(line: str) -> str:
    line = MAKE.get(line, line).replace(".venv/bin/python", "python")
    if line.startswith(DONE):
        return ":"
    module = re.search(r"python -m (\S+)", line)
    added = ADDED.get(module[1], {}) if module else {}
    study = re.search(r"study\.run (\w+) ", line + " ")
    if study and "--status" not in line:  # of a shipped study, into the folder of the whole one
        added = {"smoke": True, "folder": f"runs/studies/{study[1]}"}
    elif "-m dqn_memory.evaluate" in line and re.search("unizero|glam", line):
        added = WORLD_MODEL
    elif "--resume" in line:
        line, added = re.sub(r" --total-steps \S+", "", line), {"total_steps": 2 * NUMBERS["total_steps"]}
    if "config" in added:
        line = re.sub(r" --config \S+", "", line)
    for name, value in added.items():
        flag = f"--{'no-' * (value is False)}{name.replace('_', '-')}"
        if not re.search(rf"{flag}\b", line):
            line += f" {flag}" + ("" if isinstance(value, bool) else f" {value}")
    return line


def code(page: Path) -> list[str]:
    """List what a page writes as code: inline spans, and the lines of shell blocks."""
    text = page.read_text()
    spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", FENCE.sub("", text))
    return [re.sub(r"\s+", " ", span) for span in spans] + [
        line for block in blocks(page) if block.language in SHELL for line in commands(block.text)
    ]


@cache
def help_of(module: str) -> str:
    """What `python -m module --help` prints; the flags of all trainers for a study's settings."""
    import tyro  # noqa: F401

    out = StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        found = importlib.import_module(module)
        (found.main if hasattr(found, "main") else importlib.import_module(f"{module}.__main__").main)(["--help"])
    return out.getvalue()


def links(page: Path) -> list[str]:
    """List the targets of a page's relative links and pictures."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    return [target for target in found if not re.match(r"https?:|mailto:", target)]


def anchors(page: Path) -> set[str]:
    """List the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ +(.+?) *$", FENCE.sub("", page.read_text()), re.M)
    slugs = (re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()) for heading in headings)
    return {slug.strip().replace(" ", "-") for slug in slugs}
