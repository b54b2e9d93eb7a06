"""Train UniZero: `python -m world_models.unizero.train --config unizero/memory-5x5 --prior gaussian`.

This file and `networks.py` are UniZero (Pu et al. 2024). From top to bottom: a run and its loop (act by a search,
store, sample, update), new searches at stored steps, value targets, losses, the update, the target network. All
training scripts share `dqn_memory.runs.trainer`: state, resume, logging. `--resume RUN` continues a run.

The functions from the value targets on have static shapes and copy nothing to the host, so that eager, compiled and
captured runs share them. Shapes: N environments, B sequences of T steps, W steps of history, A actions.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from dqn_memory.network import observation_spec
from dqn_memory.play import Score
from dqn_memory.runs.base_config import Engine
from dqn_memory.runs.cuda_graph import Captured, mapped
from dqn_memory.runs.gradients import clip, parts_of
from dqn_memory.runs.metrics import RunStats
from dqn_memory.runs.seeding import generator, seed_dropout, seeded
from world_models.distributions import cross_entropy, entropy, group_kl, masked_mean
from world_models.settings import to_device, training_signal
from world_models.trainer import WorldModelTrainer
from world_models.unizero.acting import Planner, UniZeroAgent
from world_models.unizero.analysis import report_maps
from world_models.unizero.config import GROUP, SearchConfig, UniZeroConfig, UniZeroLearnerConfig
from world_models.unizero.dynamics import History
from world_models.unizero.mcts import (
    Functions,
    SearchNumbers,
    choose_actions,
    draw_numbers,
    make_functions,
    tree_search,
)
from world_models.unizero.networks import UniZeroModel, build_unizero
from world_models.unizero.replay import Contexts, SequenceReplay, Sequences

Metrics = dict[str, Tensor]
LOSS_WEIGHTS = {"latent": 10.0, "reward": 1.0, "policy": 1.0, "value": 0.5, "entropy": -1e-4}  # the paper's Table 4
BETAS, WEIGHT_DECAY = (0.9, 0.95), 1e-4  # of AdamW; tensors with fewer than two dimensions do not decay
# (observations (B, T, ...), the actions (B, T) that followed, lengths (B,)) -> values (B, T)
ValueFunction = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class UniZeroBatch(Sequences):
    """Sequences cut to T steps, and their value targets."""

    value: Tensor  # (B, T) n-step targets, on the scale of returns


Loss = Callable[[UniZeroModel, UniZeroBatch, Tensor], tuple[Tensor, Metrics]]


class UniZeroTrainer(WorldModelTrainer[UniZeroConfig]):
    """One run of UniZero: environments, model, target, optimiser, replay and search histories."""

    kind = "unizero"
    config_class = UniZeroConfig
    agent_class = UniZeroAgent
    shown: ClassVar[Mapping[str, str]] = {"return": "charts/episodic_return", "loss": "losses/total"}
    evaluation_flags = ("num_eval_envs", "episodes_per_env", "simulations")
    state_names = ("planner", "numbers", "drawing", "observation", "time")
    attention_report = staticmethod(report_maps)

    def __init__(self, config: UniZeroConfig) -> None:
        super().__init__(config)
        self.stats = RunStats(self.device, "losses/total")
        streams, rows = self.streams, config.environment.num_envs
        self.spec, self.num_actions = observation_spec(self.vector.observation_space), self.vector.num_actions
        with seeded(streams.network):
            self.model = to_device(build_unizero(config.model, self.spec, self.num_actions), self.device)
        self.target = make_target(self.model)
        engine = self.engine
        self.optimizer = make_adamw(self.model, config.learner, capturable=engine == "cudagraph")
        self.optimizers = [self.optimizer]
        self.functions = make_functions(engine, self.model)
        self.learn = make_learn(engine, self.model, self.target, self.optimizer, config.learner)
        self.replay = SequenceReplay(
            config.replay, self.spec, self.num_actions, rows, self.device,
            horizon=config.model.horizon, lookahead=config.learner.n_step, history=config.model.pairs,
        )  # fmt: skip
        self.numbers = generator(streams.exploration, self.device)  # Dirichlet noise, ties and actions of the searches
        self.drawing = generator(streams.replay)  # sequences, and the numbers of reanalysis
        seed_dropout(streams.dropout)
        self.begin()

    def begin(self) -> None:
        """Start episodes in all environments, with empty search histories."""
        config, num_envs = self.config, self.vector.num_envs
        self.observation = self.vector.reset()  # (N, ...)
        self.time = torch.zeros(num_envs, dtype=torch.int64, device=self.device)  # step within the episode
        self.planner = Planner(
            self.model, num_envs, config.search, config.learner.gamma, config.collection.reset_history, self.functions
        )

    def iterate(self) -> None:
        """Take one step in every environment, store it, then run the updates that are due."""
        collection = self.config.collection

        # act
        action, policy, latent = self.act_randomly() if self.steps < collection.prepopulate else self.plan()
        step = self.vector.step(action)

        # store
        reward, terminated = training_signal(step, collection)
        done = terminated | step.truncated
        final = {"next_observation": step.final_observation} if self.config.replay.final_observations else {}
        self.replay.add(
            observation=self.observation, action=action, reward=reward, terminated=terminated,
            done=done, time=self.time, policy=policy, **final,
        )  # fmt: skip
        self.planner.remember(latent, action, done)
        self.observation = step.observation
        self.time = torch.where(done, 0, self.time + 1)
        self.iterations += 1
        self.stats.count_episodes(step)

        # sample and update
        if self.replay.drawable:
            for _ in range(collection.updates(self.iterations, self.iterations, self.vector.num_envs)):
                metrics = self.learn(self.sequences(reanalyse=collection.reanalyses(self.updates)))
                self.updates += 1
                self.stats.count_update(metrics, self.steps)

    def plan(self) -> tuple[Tensor, Tensor, Tensor]:
        """Search for actions (N,); return them, the search's policy (N, A) and the latents (N, D)."""
        search, rows = self.config.search, self.config.environment.num_envs
        numbers = draw_numbers(search, rows, self.num_actions, self.numbers)
        result, latent = self.planner.plan(self.observation, numbers)
        return choose_actions(result, numbers, search, self.config.collection.temperature), result.policy, latent

    def act_randomly(self) -> tuple[Tensor, Tensor, Tensor]:
        """Draw actions uniformly, without a search; return the same as `plan`."""
        rows = self.config.environment.num_envs
        action = torch.randint(self.num_actions, (rows,), generator=self.numbers, device=self.device)
        policy = torch.full((rows, self.num_actions), 1 / self.num_actions, device=self.device)
        return action, policy, self.planner.encode(self.observation)

    def sequences(self, reanalyse: bool) -> Sequences:
        """Sample sequences for an update, with policy targets from the replay or from new searches."""
        drawn = self.replay.draw(self.config.learner.batch_size, self.drawing)
        sequences = self.replay.sequences(drawn)
        if not reanalyse:
            return sequences
        contexts, search = self.replay.contexts(drawn), self.config.search
        numbers = draw_numbers(search, contexts.count.numel(), self.num_actions, self.drawing)
        self.model.eval()
        numbers = mapped(lambda each: each.to(self.device), numbers)
        policy = search_again(self.functions, contexts, numbers, search, self.config.learner.gamma)  # (B, T, A)
        return replace(sequences, policy=policy.to(sequences.policy.dtype))

    @property
    def preparing(self) -> dict[str, int]:
        """Name the phase before searches and updates, and its last step."""
        return {"prefill": max(self.config.collection.learning_starts, self.config.collection.prepopulate)}

    def scalars(self) -> dict[str, float]:
        """Return the scalars of a log line, and clear their sums."""
        return super().scalars() | self.model.memory_scalars()

    def evaluated_agent(self) -> UniZeroAgent:
        return UniZeroAgent(self.model, self.config, self.steps, self.functions)

    def evaluate(self, final: bool = False, reset_memory: bool = False) -> Score:
        """Play episodes without noise."""
        training = self.model.training
        (score,) = self.evaluation_scores(("",), final, reset_memory).values()
        self.model.train(training)
        return score

    def networks(self) -> dict[str, UniZeroModel]:
        return {"model": self.model, "target": self.target}

    @classmethod
    def variant(cls, config: UniZeroConfig) -> str:
        return f"unizero-{config.model.dynamics}-{config.model.prior.kind}"


# ---- searching stored steps again ------------------------------------------------------------------------------------
def search_roots(contexts: Contexts, latent: Tensor) -> tuple[History, Tensor]:
    """Turn latents (B, W + T, D) into the roots of a search at every step: B x T histories and current latents."""
    batch, steps = contexts.count.shape
    pairs = latent.shape[1] - steps
    count = contexts.count.flatten()  # (B T,)
    first = torch.arange(steps, device=count.device).repeat(batch) + pairs - count  # the oldest of the episode
    # entries at or after `count` are padding: the clamp keeps their index inside the tensor
    index = (first.unsqueeze(1) + torch.arange(pairs, device=count.device)).clamp(max=pairs + steps - 1)  # (B T, W)
    rows = torch.arange(batch, device=count.device).repeat_interleave(steps).unsqueeze(1)
    return History(latent[rows, index], contexts.action[rows, index], count), latent[:, pairs:].flatten(0, 1)


@torch.no_grad()
def search_again(
    functions: Functions, contexts: Contexts, numbers: SearchNumbers, config: SearchConfig, discount: float
) -> Tensor:
    """Search B x T roots at once for new policy targets (B, T, A); `numbers` has a row for each."""
    history, latent = search_roots(contexts, functions.encode(contexts.observation))
    found = tree_search(functions, history, latent, numbers, config, discount)
    return found.policy.unflatten(0, contexts.count.shape)


# ---- value targets ---------------------------------------------------------------------------------------------------
# The target network estimates the bootstrap values of a sequence in one teacher-forced pass over T observations. They
# begin n' = min(n, max(1, left)) steps after the sequence's first step.


def make_batch(sequences: Sequences, values: ValueFunction, gamma: float, n: int) -> UniZeroBatch:
    """Cut stored sequences to T steps and add their value targets."""
    steps = sequences.mask.shape[1]
    bootstrap = bootstrap_values(sequences, n, values).to(torch.promote_types(sequences.reward.dtype, torch.float32))
    value = n_step_targets(sequences.reward, bootstrap, sequences.left, sequences.truncated, gamma, n)
    own = {name: getattr(sequences, name)[:, :steps] for name in ("observation", "action", "reward")}
    return UniZeroBatch(**vars(sequences) | own, value=value)


def bootstrap_values(sequences: Sequences, n: int, values: ValueFunction) -> Tensor:
    """Estimate values (B, T) of the observations n' .. n' + T - 1 steps after each sequence's first, in one call.

    The final observation of a truncated episode has no action. If the prior is not causal, these values depend on its
    padding, action 0.
    """
    steps = sequences.mask.shape[1]
    count = sequences.left.clamp(1, n)  # (B,), n': number of rewards in a target
    index = count.unsqueeze(1) + torch.arange(steps, device=count.device)  # (B, T), below T + n
    row = torch.arange(len(count), device=count.device).unsqueeze(1)
    available = sequences.left + sequences.truncated  # observations of the episode, its final one included
    real = (available - count).clamp(1, steps)  # at least one; n_step_targets ignores its value if there is none
    return values(sequences.observation[row, index], sequences.action[row, index], real)


def n_step_targets(reward: Tensor, bootstrap: Tensor, left: Tensor, truncated: Tensor, gamma: float, n: int) -> Tensor:
    """Compute value targets (B, T) on the scale of returns.

    The target of step c is the discounted sum of the rewards of steps c .. c + n' - 1, plus gamma^n' times the value
    after them. Rewards and value after an episode's last step are 0. A truncated episode ends with the value of its
    final observation instead.

    Args:
        reward: (B, T + n - 1 or more), from the sequence's first step on.
        bootstrap: (B, T), values of the observations n' .. n' + T - 1 steps after the first.
        left: (B,), number of the episode's steps from the first one on, at most T + n.
        truncated: (B,) bool, whether the episode was truncated and its final observation is stored.
        gamma: discount of a step.
        n: steps of reward before the bootstrap.
    """
    steps = bootstrap.shape[1]
    count, left = left.clamp(1, n).unsqueeze(1), left.unsqueeze(1)  # (B, 1)
    index = torch.arange(reward.shape[1], device=reward.device)
    power = torch.arange(n, device=reward.device)
    window = torch.where(index < left, reward, 0.0).unfold(1, n, 1)[:, :steps]  # (B, T, n)
    discount = torch.where(power < count, gamma ** power.to(reward.dtype), 0.0)  # (B, n)
    step = index[:steps]
    final = truncated.unsqueeze(1) & (step < left)
    ahead = count.minimum(left - step).clamp(min=0)  # (B, T): below n' near the end of a truncated episode
    value = bootstrap.gather(1, step.minimum((left - count).clamp(min=0)))
    value = torch.where((step + count < left) | final, value, 0.0)
    return (window * discount.unsqueeze(1)).sum(2) + gamma ** ahead.to(reward.dtype) * value


# ---- losses: four, each a mean over real steps (Pu et al. 2024; Table 4 of "Learning to Focus") ----------------------


def unizero_losses(model: UniZeroModel, batch: UniZeroBatch, target_latent: Tensor) -> tuple[Tensor, Metrics]:
    """Compute the loss without the penalty on spans, a scalar, and its parts.

    The model is teacher forced: it reads the encoded observations instead of its own predictions. The encoder gets its
    gradient through these tokens. `target_latent` (B, T, D) are the target encoder's latents of the observations.
    """
    latent = model.encode(batch.observation)  # (B, T, D)
    predicted = model(latent, batch.action, batch.mask.sum(-1))
    code, real = model.code, batch.mask
    parts = {  # the last step has no next latent
        "latent": masked_mean(group_kl(predicted.next_latent[:, :-1], target_latent[:, 1:], GROUP), real[:, 1:]),
        "reward": masked_mean(cross_entropy(predicted.reward, code.encode(batch.reward)), real),
        "value": masked_mean(cross_entropy(predicted.value, code.encode(batch.value)), real),
        "policy": masked_mean(cross_entropy(predicted.policy, batch.policy), real),
        "entropy": masked_mean(entropy(predicted.policy), real),
    }
    total = parts["latent"].new_zeros(())
    for name, weight in LOSS_WEIGHTS.items():
        total = total + weight * parts[name]
    return total, {f"losses/{name}": part.detach() for name, part in parts.items()}


# ---- the update ------------------------------------------------------------------------------------------------------


def update_unizero(
    model: UniZeroModel, target: UniZeroModel, optimizer: torch.optim.Optimizer, batch: UniZeroBatch,
    config: UniZeroLearnerConfig, loss: Loss = unizero_losses,
) -> Metrics:  # fmt: skip
    """Take one gradient step on `model` and move `target` towards it; the metrics stay on the device.

    `loss` is `unizero_losses`, or its compiled form.
    """
    model.train()
    with _autocast(batch.action, config):
        target_latent = target_latents(target, batch.observation)
        total, metrics = loss(model, batch, target_latent)
    penalty = model.regularisation()
    total = total + penalty
    optimizer.zero_grad(set_to_none=True)
    total.backward()
    norms = clip(parts_of(model), config.max_grad_norm)
    optimizer.step()
    model.project()
    move_target(model, target, config.target_update_rate)
    return metrics | {"losses/regularisation": penalty.detach(), "losses/total": total.detach()} | norms


def make_learn(
    engine: Engine, model: UniZeroModel, target: UniZeroModel, optimizer: torch.optim.Optimizer,
    config: UniZeroLearnerConfig, backend: str = "inductor",
) -> Callable[[Sequences], Metrics]:  # fmt: skip
    """Make the update on sequences from the replay: value targets by the target network, then a gradient step.

    All engines compute the same. `cudagraph` needs a capturable optimiser.
    """
    loss = torch.compile(unizero_losses, dynamic=False, backend=backend) if engine == "compile" else unizero_losses

    def learn(sequences: Sequences) -> Metrics:
        with _autocast(sequences.action, config):
            batch = make_batch(sequences, partial(target_values, target), config.gamma, config.n_step)
        return update_unizero(model, target, optimizer, batch, config, loss)

    return Captured(learn, (model, target), (optimizer,)) if engine == "cudagraph" else learn


def _autocast(like: Tensor, config: UniZeroLearnerConfig) -> torch.autocast:
    return torch.autocast(like.device.type, torch.bfloat16, enabled=config.precision == "bfloat16")


def make_adamw(model: UniZeroModel, config: UniZeroLearnerConfig, capturable: bool = False) -> torch.optim.AdamW:
    """Make AdamW. Tensors with two or more dimensions decay; `prior_learning_rate` makes the priors a group."""
    priors = {id(p) for attention in model.attentions() for p in attention.prior.parameters()}
    apart = priors if config.prior_learning_rate is not None else set()
    own, others = ([p for p in model.parameters() if (id(p) in apart) == inside] for inside in (True, False))
    groups = [
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    if own:
        groups.append({"params": own, "weight_decay": 0.0, "lr": config.prior_learning_rate})
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=BETAS, eps=1e-8, fused=True, capturable=capturable)


# ---- the target network ----------------------------------------------------------------------------------------------


def make_target(model: UniZeroModel) -> UniZeroModel:
    """Copy the model, buffers included, without gradients."""
    return copy.deepcopy(model).requires_grad_(False)


@torch.no_grad()
def move_target(model: nn.Module, target: nn.Module, rate: float) -> None:
    """Move the target's parameters, but not its buffers, towards the model's by `rate`, in place."""
    torch._foreach_lerp_(list(target.parameters()), list(model.parameters()), rate)


@torch.no_grad()
def target_latents(target: UniZeroModel, observation: Tensor) -> Tensor:
    """Encode observations in training mode: the targets (B, T, D) of the predicted next latents.

    Batch normalisation then uses the statistics of this batch, as in the online encoder. The target has running
    statistics of its own.
    """
    target.train()
    return target.encode(observation)


@torch.no_grad()
def target_values(target: UniZeroModel, observation: Tensor, action: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Estimate values (B, S) of S observations on the scale of returns, in evaluation mode.

    The network reads S <= horizon steps in one teacher-forced pass, so the k-th value has k earlier steps as context.
    """
    target.eval()
    return target.values(target.encode(observation), action, lengths)


main = UniZeroTrainer.main  # starts or resumes a run and trains it to its end

if __name__ == "__main__":
    main()
