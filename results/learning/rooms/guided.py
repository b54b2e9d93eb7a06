"""Train a policy that also learns the steps of a guide who sees the maze: try r of `rooms.md`.

    PYTHONPATH=results/learning/rooms python -m guided --env Guided/NineRooms-v0 --prediction-weight 0 --reward-scale 1

The other flags are those of `python -m dqn_memory.ppo`; `rooms.md` has the command of the try. The guide walks to the
nearest cell that has not been in view, but for walls, and to the good exit once this and a beacon have been in view.
Each step's reward carries its advice to the loss, so that the printed returns mean nothing; success is the maze's.
"""

import sys
from typing import Any

import torch
from seen_cells import PaysForCells, SeenState, register
from torch import Tensor

from dqn_memory import ppo
from dqn_memory.rollouts import Rollout
from envs.gridverse.objects import BEACON, EXIT, WALL, blocks_movement, colours, kinds
from envs.gridverse.tasks import Memory, MemoryRooms

ADVICE = 0.3  # weight of the imitation
SCALE = 0.3  # of the maze's rewards
CODE = 100.0  # a reward holds this times the number of the advised actions
MOVES = 4  # the first actions; the last two turn
FAR = 120  # steps, more than any way in these mazes


class Guided(PaysForCells):
    """A maze whose rewards carry advice; its episodes end after 100 steps."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"time_limit": 100, **options})

    def step(self, state: Any, action: Tensor, u: Tensor) -> Any:
        """Add the code of the advised actions to the reward."""
        code = CODE * (self.advice(state) << torch.arange(self.num_actions)).sum(1).double()
        after, observation, reward, terminated, success = super().step(state, action, u)
        changed = vars(after) | {"returns": after.returns + code, "paid": after.paid + code}
        return SeenState(**changed), observation, reward + code, terminated, success

    def advice(self, state: Any) -> Tensor:
        """Tell which actions bring the guide nearer to its goal, (N, A) int64; where none does, both turns."""
        code = state.cells.long()
        kind, blocked = kinds(code), blocks_movement(code)
        exits = kind == EXIT
        good = exits & (colours(code) == state.good[:, None])
        ready = ((state.seen & (kind == BEACON)).any(1) & (state.seen & good).any(1))[:, None]
        goals = torch.where(ready, good, ~state.seen & (kind != WALL))
        here = state.position[:, None]
        beside = here + self.task.rules[0].offset.view(4, -1)[state.heading, :MOVES]  # type: ignore[attr-defined]
        steps = self._steps_to(goals, goals | ~blocked & ~exits, torch.cat([here, beside], 1))  # (N, 1 + MOVES)
        enters = ~blocked.gather(1, beside) & (~exits.gather(1, beside) | good.gather(1, beside) & ready)
        nearer = enters & (steps[:, 1:] < steps[:, :1])
        turns = ~nearer.any(1, keepdim=True)
        return torch.cat([nearer, turns, turns], 1).long()

    def _steps_to(self, goals: Tensor, free: Tensor, places: Tensor) -> Tensor:
        """Count the steps from places (N, K) to the nearest goal; FAR for those farther away than the first place."""
        steps, reached = torch.full(places.shape, FAR), goals
        for distance in range(FAR):
            steps = torch.where(reached.gather(1, places) & (steps == FAR), distance, steps)
            if bool((steps[:, 0] < FAR).all()):
                break
            for shift in (1, -1, self.width, -self.width):  # the border is wall, so that a roll reaches no other side
                reached = reached | goals.roll(shift, 1) & free
            goals = reached
        return steps


def decoded(rollout: Rollout[Any]) -> tuple[Tensor, Rollout[Any]]:
    """Split rewards into advice, (B, T, A) bool, and the maze's rewards, scaled."""
    number = ((rollout.reward + CODE / 2) / CODE).floor()
    advice = number.long()[..., None] >> torch.arange(6) & 1
    return advice.bool(), rollout._replace(reward=SCALE * (rollout.reward - CODE * number))


def advantages(rollout: Rollout[Any], gamma: float, decay: float) -> tuple[Tensor, Tensor]:
    """Compute advantages and returns of the maze's rewards."""
    return plain_advantages(decoded(rollout)[1], gamma, decay)


def loss(actions: Any, outputs: Any, rollout: Rollout[Any], *rest: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute PPO's loss minus the weighted log probability that an advised action is drawn."""
    advice, rollout = decoded(rollout)
    total, metrics = plain_loss(actions, outputs, rollout, *rest)
    advised = outputs.logits.log_softmax(-1).masked_fill(~advice, -1e9).logsumexp(-1).mean()
    followed = advice.gather(-1, rollout.action.long()[..., None]).double().mean()
    return total - ADVICE * advised, metrics | {
        "losses/followed": followed.detach(),
        "losses/advised": advised.detach(),
    }


if __name__ == "__main__":
    plain_advantages, plain_loss = ppo.gae, ppo.ppo_loss
    ppo.gae, ppo.ppo_loss = advantages, loss  # type: ignore[assignment]
    ppo.main(["--plugin", "guided", *sys.argv[1:]])
else:
    for size in (5, 7):
        register(Guided, Memory, "Guided", f"Corridor-{size}", size=size)
    register(Guided, MemoryRooms, "Guided", "FourRooms-7x7", size=7, rooms=(2, 2))
    register(Guided, MemoryRooms, "Guided", "NineRooms", size=13, rooms=(3, 3))
