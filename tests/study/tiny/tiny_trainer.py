"""A trainer that is a counter: command line and run folder of the real ones, in milliseconds and without torch."""

import json
import os
import signal
import sys
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from dqn_memory.runs.base_config import ComputeConfig, EnvironmentConfig, OutputConfig
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Repeatable
from envs.files import write_text


@dataclass(frozen=True)
class TrainConfig:
    trainer: ClassVar[str] = "tiny_trainer"
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    output: OutputConfig = field(default_factory=lambda: OutputConfig(checkpoint_every=10))
    compute: ComputeConfig = field(default_factory=ComputeConfig)
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


def train(folder: Path, config: dict[str, Any]) -> None:
    manifest, began = folder / "checkpoints" / "manifest.json", time.monotonic()
    state = {"step": 0, "metrics_bytes": 0, "value": config["seed"]}
    if manifest.exists():
        state = json.loads(manifest.read_text())["content"]
    value = state["value"]
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
            if last := step == config["total_steps"]:
                line["final/success_rate"] = value % 101 / 100
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            if step % config["output"]["checkpoint_every"] == 0 or last:
                content = {"step": step, "metrics_bytes": os.fstat(file.fileno()).st_size, "value": value}
                write_text(manifest, json.dumps({"content": content}))


if __name__ == "__main__":
    flags = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    folder = Path(flags.get("--resume") or flags["--run"])
    if "--resume" not in flags:
        write_text(folder / "config.toml", Path(flags["--config"]).read_text())
        write_text(folder / "environment.json", json.dumps({"command": " ".join(sys.argv)}))
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    print(f"process {os.getpid()} threads {os.environ['OMP_NUM_THREADS']} devices {devices!r}", flush=True)
    train(folder, tomllib.loads((folder / "config.toml").read_text()))
