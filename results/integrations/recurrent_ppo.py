"""Train RecurrentPPO of sb3-contrib with its LSTM and with memories of ours; append rows to recurrent_ppo.csv.

    python results/integrations/recurrent_ppo.py POMDP/CarFlag-v0 150000 1 lstm_of_sb3 gru mingru attention

needs `pip install '.[sb3]'`, and popgym for its environments. Seconds are processor time of one thread, environments
included; the return is the mean of the newest 100 episodes, at half and at the end of the steps. All networks have
width 64, and actor and critic have memories of their own; the other settings are the same for all, and untuned.
"""

import csv
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

import envs  # noqa: F401  registers the environments
from dqn_memory.integrations.sb3 import MemoryPolicy

with suppress(ImportError):
    import popgym  # noqa: F401  registers its environments

TABLE = Path(__file__).with_suffix(".csv")
OPTIONS = {"attention": {"context": 32}}


class Returns(BaseCallback):
    """Notes the mean return of the newest 100 episodes after each rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.means: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.means.append(float(np.mean([episode["r"] for episode in self.model.ep_info_buffer] or [np.nan])))


def train(environment: str, steps: int, seed: int, memory: str) -> dict[str, object]:
    """Train one learner; a row of the table."""
    policy: dict[str, object] = {"lstm_hidden_size": 64}
    kind: object = "MlpLstmPolicy"
    if memory != "lstm_of_sb3":
        kind, policy = MemoryPolicy, policy | {"memory": memory, "memory_kwargs": OPTIONS.get(memory)}
    settings = {"n_steps": 32, "batch_size": 1024, "n_epochs": 4, "learning_rate": 1e-3, "policy_kwargs": policy}
    model = RecurrentPPO(kind, make_vec_env(environment, n_envs=32, seed=seed), seed=seed, device="cpu", **settings)
    model.learn(2048)  # compilers of kernels run in the first updates
    returns, began = Returns(), time.process_time()
    model.learn(steps, callback=returns, reset_num_timesteps=False)
    seconds = time.process_time() - began
    means = returns.means
    return {
        "environment": environment, "memory": memory, "seed": seed, "steps": steps, "seconds": round(seconds, 1),
        "steps_s": round(steps / seconds), "return_half": round(means[len(means) // 2], 2),
        "return_end": round(means[-1], 2),
    }  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    environment, steps, seed, *memories = sys.argv[1:]
    for memory in memories:
        row = train(environment, int(steps), int(seed), memory)
        new = not TABLE.exists()
        with TABLE.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            writer.writerows([dict(zip(row, row, strict=True)), row] if new else [row])
        print(row, flush=True)
