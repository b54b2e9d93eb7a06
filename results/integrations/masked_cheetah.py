"""Train RecurrentPPO of sb3-contrib on HalfCheetah without velocities; append rows to masked_cheetah.csv.

    python results/integrations/masked_cheetah.py 1000000 1 2 3

needs `pip install '.[sb3]' 'gymnasium[mujoco]'`. The arguments are the steps and the seeds. The agent sees the
first 8 of HalfCheetah-v5's 17 numbers, which are positions and angles. As a plugin this file registers that
environment: `--plugin masked_cheetah --env Masked/HalfCheetah-v0`, in this folder.

Settings are those of RL Baselines3 Zoo for RecurrentPPO on HalfCheetah of PyBullet, with 8 environments instead of 16.
Seconds are processor time of one thread, environments included and evaluation left out.
"""

import csv
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.wrappers import TransformObservation

TABLE, POSITIONS, EPISODES = Path(__file__).with_suffix(".csv"), 8, 20


def make(render_mode: str | None = None) -> gymnasium.Env:
    """HalfCheetah-v5 that shows positions only."""
    space = gymnasium.spaces.Box(-np.inf, np.inf, (POSITIONS,), np.float32)
    cheetah = gymnasium.make("HalfCheetah-v5", render_mode=render_mode)
    return TransformObservation(cheetah, lambda seen: seen[:POSITIONS].astype(np.float32), space)


gymnasium.register("Masked/HalfCheetah-v0", make)


def train(steps: int, seed: int) -> dict[str, object]:
    """Train and evaluate one agent; a row of the table."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.callbacks import ConvertCallback, EveryNTimesteps
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize
    from torch import nn

    env = VecNormalize(make_vec_env("Masked/HalfCheetah-v0", n_envs=8, seed=seed), gamma=0.99)
    policy = {
        "ortho_init": False, "activation_fn": nn.ReLU, "net_arch": {"pi": [], "vf": []}, "enable_critic_lstm": True,
        "lstm_hidden_size": 128,
    }  # fmt: skip
    model = RecurrentPPO(
        "MlpLstmPolicy", env, n_steps=256, batch_size=128, n_epochs=10, gamma=0.99, gae_lambda=0.9, seed=seed,
        device="cpu", policy_kwargs=policy,
    )  # fmt: skip
    began = time.process_time()

    def tell(*_: object) -> bool:
        mean = np.mean([episode["r"] for episode in model.ep_info_buffer] or [np.nan])
        print(f"seed {seed}, step {model.num_timesteps}: {mean:.0f}, {time.process_time() - began:.0f} s", flush=True)
        return True

    model.learn(steps, callback=EveryNTimesteps(steps // 20, ConvertCallback(tell)))
    seconds = time.process_time() - began
    env.training = env.norm_reward = False
    env.seed(1_000 + seed)
    returns, _ = evaluate_policy(model, env, EPISODES, deterministic=True, return_episode_rewards=True)
    return {"agent": "RecurrentPPO", "seed": seed, "steps": steps, "seconds": round(seconds),
            "return": round(float(np.mean(returns)), 1)}  # fmt: skip


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    steps, *seeds = map(int, sys.argv[1:])
    for seed in seeds:
        row = train(steps, seed)
        new = not TABLE.exists()
        with TABLE.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            writer.writerows([dict(zip(row, row, strict=True)), row] if new else [row])
        print(row, flush=True)
