"""A trainer that is a counter: command line and run folder of the real ones, in milliseconds and without torch."""

import json
import os
import signal
import sys
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Repeatable


@dataclass(frozen=True)
class Environment:
    env: str = "POMDP/Hallway-v0"


@dataclass(frozen=True)
class Output:
    run: str | None = None
    checkpoint_every: int = 10


@dataclass(frozen=True)
class Compute:
    device: str = "auto"
    threads: int | None = None


@dataclass(frozen=True)
class TrainConfig:
    environment: Environment = field(default_factory=Environment)
    output: Output = field(default_factory=Output)
    compute: Compute = field(default_factory=Compute)
    seed: int = 1
    architecture: str = "a"
    total_steps: int = 60
    pause: float = 0.0
    "seconds of a step"
    fails_at: int | None = None
    dies_at: int | None = None
    plugin: Repeatable = ()

    def check(self) -> None:
        if self.total_steps < 1:
            raise UserError("--total-steps must be at least 1")


class TinyTrainer:
    config_class = TrainConfig


def put(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    temporary.replace(path)


def saved(folder: Path) -> dict[str, Any]:
    manifest = folder / "checkpoints" / "manifest.json"
    return json.loads(manifest.read_text())["content"] if manifest.exists() else {"step": 0, "metrics_bytes": 0}


def save(folder: Path, step: int, value: int) -> None:
    content = {"step": step, "metrics_bytes": (folder / "metrics.jsonl").stat().st_size, "value": value}
    put(folder / "checkpoints" / "manifest.json", json.dumps({"content": content}))


def train(folder: Path, config: dict[str, Any]) -> None:
    state = saved(folder)
    value, began = state.get("value", config["seed"]), time.monotonic()
    with (folder / "metrics.jsonl").open("ab") as file:
        file.truncate(state["metrics_bytes"])
        for step in range(state["step"] + 1, config["total_steps"] + 1):
            time.sleep(config["pause"])
            value = (value * 6364136223846793005 + step + len(config["architecture"])) % 2**63
            if step == config.get("fails_at"):
                sys.exit(f"error: step {step} cannot be taken")
            if step == config.get("dies_at"):
                os.kill(os.getpid(), signal.SIGKILL)
            line = {"step": step, "charts/value": value, "time/elapsed": time.monotonic() - began}
            if step == config["total_steps"]:
                line["final/success_rate"] = value % 101 / 100
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            if step % config["output"]["checkpoint_every"] == 0 or step == config["total_steps"]:
                save(folder, step, value)


if __name__ == "__main__":
    flags = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    if "--resume" in flags:
        folder = Path(flags["--resume"])
    else:
        folder = Path(flags["--run"])
        (folder / "checkpoints").mkdir(parents=True)
        put(folder / "config.toml", Path(flags["--config"]).read_text())
        put(folder / "environment.json", json.dumps({"command": " ".join(sys.argv)}))
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    print(f"process {os.getpid()} threads {os.environ['OMP_NUM_THREADS']} devices {devices!r}", flush=True)
    train(folder, tomllib.loads((folder / "config.toml").read_text()))
