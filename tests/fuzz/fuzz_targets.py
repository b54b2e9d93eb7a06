"""What is changed and tried: every form of file that a user, a disk or another program may hand to the suite."""

import json
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import fuzz_mutate as mutate
import glam_models
import torch
import unizero_models
from fuzz_blocks import BLOCK_TARGETS
from fuzz_environments import ENVIRONMENT_TARGETS
from fuzz_folders import FOLDER_TARGETS
from fuzz_pages import PAGE_TARGETS
from trained import CAR, CARDS, contents, rollout_flags, training_flags

from dqn_memory.runs import checkpoint
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.kinds import trainer_class
from dqn_memory.runs.settings import PRESETS, read_config
from dqn_memory.runs.toml import defaults, to_toml
from dqn_memory.study.definition import expand, parse_definition
from envs.files import sha256
from envs.gridverse.yaml.world import stock_files
from envs.registry import make_world

DATA = Path(__file__).parents[1] / "data"
RUNS = {  # a tiny run of every kind, which is finished
    "q_network": lambda run, *more: training_flags(run, "--env", CARDS, *more, steps=200),
    "unizero": partial(unizero_models.flags, steps=100),
    "glam": partial(glam_models.flags, steps=42),
    "ppo": lambda run, *more: rollout_flags(run, "--env", CAR, *more, steps=256),
    "pqn": lambda run, *more: rollout_flags(run, "--env", CAR, *more, steps=256),
}
Case = Callable[[], object]


@dataclass(frozen=True)
class Target:
    """A kind of file: what is changed (`corpus`), how, and what is done with the changed one in a folder."""

    corpus: Callable[[], list[Any]]
    change: Callable[[Any, random.Random], Any]
    use: Callable[[Any, Path], Case]

    def case(self, seed: int, folder: Path) -> Case:
        """Make the case of a seed."""
        draw = random.Random(seed)
        return self.use(self.change(draw.choice(self.corpus()), draw), folder)


def texts(pattern: str, folder: Path) -> list[str]:
    """Read all files of a name."""
    return [path.read_text() for path in sorted(folder.rglob(pattern))]


def played(id: str, name: str, text: str, folder: Path) -> Case:
    """Make an environment from a changed file, and take three steps in two copies of it."""
    path = folder / name
    path.write_text(text, errors="replace")

    def case() -> None:
        world = make_world(id, path=str(path))
        draws = torch.Generator().manual_seed(0)
        state = world.reset(torch.rand(2, world.reset_draws, dtype=torch.float64, generator=draws))
        for step in range(3):
            u = torch.rand(2, world.step_draws, dtype=torch.float64, generator=draws)
            state = world.step(state, torch.full((2,), step % world.num_actions), u)[0]

    return case


@cache
def configs() -> list[tuple[str, str]]:
    """List the complete config of every kind of run, and all presets."""
    whole = [(kind, to_toml(defaults(trainer_class(kind).config_class))) for kind in RUNS]
    kinds = {"glam": "glam", "unizero": "unizero"}
    presets = [path for path in sorted(PRESETS.rglob("*.toml")) if path.parent.name != "studies"]
    return whole + [(kinds.get(path.parent.name, "q_network"), path.read_text()) for path in presets]


def read(source: tuple[str, str], folder: Path) -> Case:
    """Read a changed config, as --config does, and check it."""
    kind, text = source
    path = folder / "changed.toml"
    path.write_text(text, errors="replace")
    return lambda: read_config(trainer_class(kind).config_class, str(path)).check()


def planned(text: str, folder: Path) -> Case:
    """Expand a changed definition of a study."""
    return lambda: expand(parse_definition(text, "changed.toml", "changed"))


@cache
def run_folders() -> dict[str, Path]:
    """Train a run of every kind."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-runs-"))
    for kind, flags in RUNS.items():
        trainer_class(kind).main(flags(folder / kind))
    return {kind: folder / kind for kind in RUNS}


def damaged(damage: Callable[[Path, random.Random], None]) -> Target:
    """Make a target of a damage to a copy of a run, which is resumed for an iteration, or refused and left as it is."""

    def change(kind: str, draw: random.Random) -> tuple[str, random.Random]:
        return kind, draw

    def use(source: tuple[str, random.Random], folder: Path) -> Case:
        kind, draw = source
        run = folder / "run"
        shutil.copytree(run_folders()[kind], run)
        damage(run, draw)
        before = contents(run)

        def case() -> None:
            try:
                trainer, opened = trainer_class(kind).start(["--resume", str(run), "--total-steps", "100000"])
                with opened:
                    trainer.iterate()
                    trainer.scalars()
            except (UserError, SystemExit):
                after = contents(run)
                assert after == before, f"changed: {sorted(set(after.items()) ^ set(before.items()))}"
                raise

        return case

    return Target(lambda: list(RUNS), change, use)


def damage_file(name: str, run: Path, draw: random.Random) -> None:
    """Damage the bytes of one file, or all of them."""
    path = run / name
    deep = draw.random() < 0.05
    path.write_bytes(b"[" * 100_000 if deep else mutate.data(path.read_bytes(), draw))


def forge_manifest(run: Path, draw: random.Random) -> None:
    """Change a manifest and seal it anew."""
    path = run / "checkpoints" / checkpoint.MANIFEST
    content = mutate.tree(json.loads(path.read_bytes())["content"], draw)
    path.write_bytes(checkpoint._seal(json.loads(json.dumps(content, default=str))))


def forge_file(part: str, run: Path, draw: random.Random) -> None:
    """Change the weights' bytes, or the trainer's state, and seal the manifest anew."""
    path = run / "checkpoints" / checkpoint.MANIFEST
    content = json.loads(path.read_bytes())["content"]
    file = path.with_name(content[part]["file"])
    if part == "trainer":
        state = torch.load(file, weights_only=True)
        data = checkpoint.pack_trainer(mutate.tree(state, draw))
    else:
        whole = file.read_bytes()
        head = 8 + int.from_bytes(whole[:8], "little")
        data = mutate.data(whole[:head], draw) + whole[head:]
    file.write_bytes(data)
    content[part] |= {"size": len(data), "sha256": sha256(data)}
    path.write_bytes(checkpoint._seal(content))


TARGETS: dict[str, Target] = {
    "pomdp": Target(lambda: texts("*.pomdp", DATA), mutate.text, partial(played, "POMDP/File-v0", "changed.pomdp")),
    "yaml": Target(
        lambda: [path.read_text() for path in stock_files().values()],
        mutate.text,
        partial(played, "Gridverse/Yaml-v0", "changed.yaml"),
    ),
    "config": Target(configs, lambda source, draw: (source[0], mutate.text(source[1], draw)), read),
    "study": Target(lambda: texts("*.toml", PRESETS / "studies"), mutate.text, planned),
    "metrics": damaged(partial(damage_file, "metrics.jsonl")),
    "environment": damaged(partial(damage_file, "environment.json")),
    "config of a run": damaged(partial(damage_file, "config.toml")),
    "manifest": damaged(partial(damage_file, "checkpoints/manifest.json")),
    "forged manifest": damaged(forge_manifest),
    "forged weights": damaged(partial(forge_file, "weights")),
    "forged state": damaged(partial(forge_file, "trainer")),
    **{name: Target(*parts) for name, parts in ENVIRONMENT_TARGETS.items()},
}
TARGETS |= FOLDER_TARGETS | BLOCK_TARGETS | PAGE_TARGETS
