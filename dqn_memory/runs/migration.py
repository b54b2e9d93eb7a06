"""Names that this version has changed, so that what an earlier one wrote can be read for ever.

A TOML file, a recorded config and a checkpoint's config say `schema = 2`; those that do not are of schema 1 and pass
through `migrate`. Whoever renames a setting adds one line to PATHS (or VALUES) here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envs.errors import UserError

SCHEMA = 2
Keys = tuple[str, ...]

# Kinds of trainers, as checkpoints' headers and studies of schema 1 call them.
KINDS = {
    "dqn-memory q-network": "q_network",
    "dqn_memory.train": "q_network",
    "world_models.unizero.train": "unizero",
    "world_models.glam.train": "glam",
}
# What all trainers have.
_SHARED = {
    "world": "environment",
    "world.worlds": "environment.num_envs",
    "evaluation.forgetful": "evaluation.memory_ablation",
}


def _prior(section: str) -> dict[str, str]:
    """List the renamed settings of a temporal prior."""
    names = {"weight": "regulariser_weight", "cap": "max_span", "window": "local_window"}
    return {f"{section}.prior.{old}": f"{section}.prior.{new}" for old, new in names.items()}


# Old path -> new path of a setting, or of a table with all that is in it; both are paths from the config's root.
PATHS: dict[str, dict[str, str]] = {
    "q_network": _SHARED
    | _prior("network")
    | {
        "network.encoding": "network.position_encoding",
        "network.order": "network.norm_order",
        "learner.batch": "learner.batch_size",
        "learner.final_rate": "learner.final_lr_fraction",
        "learner.prior_lr": "learner.prior_learning_rate",
        "learner.clip_norm": "learner.max_grad_norm",
        "learner.target_every": "learner.target_update_every",
        "learner.average": "learner.ema_decay",
        "learner.positions": "learner.loss_positions",
        "learner.placement": "learner.window_placement",
        "learner.terminal_share": "learner.terminal_fraction",
        "learner.weight_updates": "learner.terminal_weight_updates",
        "learner.tails": "learner.tail_fraction",
        "replay.updates": "replay.updates_per_iteration",
        "replay.every": "replay.update_every",
        "exploration.schedule": "exploration.epsilon_schedule",
        "exploration.spread": "exploration.epsilon_ladder",
        "exploration.hold": "exploration.sticky_exponent",
        "exploration.longest_hold": "exploration.sticky_max_steps",
        "exploration.lead": "exploration.random_start_steps",
        "evaluation.stop_at": "evaluation.stop_at_success",
    },
    "unizero": _SHARED
    | _prior("model")
    | {
        "learner.batch": "learner.batch_size",
        "learner.prior_lr": "learner.prior_learning_rate",
        "learner.clip_norm": "learner.max_grad_norm",
        "learner.target_rate": "learner.target_update_rate",
        "learner.target_every": "learner.target_update_every",
        "search.noise_share": "search.dirichlet_fraction",
        "search.noise_alpha": "search.dirichlet_alpha",
        "search.asking": "search.query_per",
        "search.gumbel.considered": "search.gumbel.max_considered_actions",
        "search.gumbel.scale": "search.gumbel.value_scale",
        "replay.segment": "replay.segment_length",
        "replay.terminal_share": "replay.terminal_fraction",
        "collection.wipe": "collection.reset_history",
        "collection.life_ends": "collection.terminal_on_life_loss",
        "collection.ratio": "collection.replay_ratio",
        "collection.every": "collection.update_every",
        "collection.reanalyse": "collection.reanalyse_fraction",
        "evaluation.rows": "evaluation.num_eval_envs",
        "evaluation.quota": "evaluation.episodes_per_env",
        "evaluation.final_quota": "evaluation.final_episodes_per_env",
        "evaluation.longest": "evaluation.max_episode_steps",
        "evaluation.stop_at": "evaluation.stop_at_return",
    },
    "glam": _SHARED
    | {
        "learner.batch": "learner.batch_size",
        "learner.clip_norm": "learner.max_grad_norm",
        "agent.clip_norm": "agent.max_grad_norm",
        "agent.entropy": "agent.entropy_weight",
        "imagination.rows": "imagination.num_rollouts",
        "imagination.begin": "imagination.start_from",
        "horizon.every": "horizon.growth_every",
        "model.states": "model.state_size",
        "model.memory": "model.attention_window",
        "model.window": "model.local_window",
        "model.resets": "model.reset_at_episode_start",
        "model.warm_up": "model.burn_in",
        "model.imagination": "model.imagination_memory",
        "collection.life_ends": "collection.terminal_on_life_loss",
        "collection.blind": "collection.act_before_observing",
        "collection.model_ratio": "collection.model_replay_ratio",
        "collection.agent_ratio": "collection.agent_replay_ratio",
        "evaluation.evaluation_rows": "evaluation.num_eval_envs",
        "evaluation.quota": "evaluation.episodes_per_env",
        "evaluation.final_quota": "evaluation.final_episodes_per_env",
        "evaluation.longest": "evaluation.max_episode_steps",
        "learner.final_rate": "learner.final_lr_fraction",
        "agent.final_rate": "agent.final_lr_fraction",
        "evaluation.stop_at": "evaluation.stop_at_return",
    },
}
BACKENDS = {"lanes": "simd"}  # of Mamba
# Old path of a setting -> {old value: new value}.
VALUES: dict[str, dict[str, dict[Any, Any]]] = {
    kind: {"world.observe": {"world": "observation"}, "compute.backend": BACKENDS} for kind in PATHS
}
# How the names of old metrics began -> how the new ones begin.
METRICS: dict[str, str] = {"forgetful/": "memory_ablation/"}

# Keys of a checkpoint's trainer state, in all kinds of runs.
STATE = {"meter": "stats", "optimizer": "optimizers"}
EXPLORER = {"held": "sticky_action", "left": "sticky_steps", "leading": "random_start_steps"}


def migrate(kind: str, tree: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Give a config's tree of TOML values the names of this schema, without the key `schema`.

    Args:
        kind: the trainer whose config it is, such as "q_network".
        tree: nested tables; it may be a part of a config, and names that did not change may stand in it.
        source: what the tree was read from, for messages.

    Raises:
        UserError: the schema is unknown, or a setting is given under its old and its new name.
    """
    schema = tree.get("schema", 1)
    found = {key: value for key, value in tree.items() if key != "schema"}
    if schema == SCHEMA:
        return found
    if schema != 1:
        raise UserError(f"{source}: schema {schema!r} is not known here; this version reads 1 and {SCHEMA}")
    migrated: dict[str, Any] = {}
    for path, value in _leaves(found):
        _put(migrated, new_path(kind, path), new_value(kind, path, value), source)
    return migrated


def new_path(kind: str, path: Keys) -> Keys:
    """Where a setting of schema 1 stands now."""
    table = PATHS.get(kind, {})
    for length in range(len(path), 0, -1):  # a setting's own line comes before that of its table
        if (new := table.get(".".join(path[:length]))) is not None:
            return (*new.split("."), *path[length:])
    return path


def new_value(kind: str, path: Keys, value: Any) -> Any:
    """Translate a setting's value of schema 1."""
    names = VALUES.get(kind, {}).get(".".join(path), {})
    return names.get(value, value) if isinstance(value, str | bool | int | float) else value


def new_setting(kind: str, key: str, value: Any = None) -> tuple[str, Any]:
    """Translate path and value of a setting that a study of schema 1 names by its flag or its path; others stay."""
    word = key.replace("-", "_").replace(".", "_")
    for old in (*VALUES.get(kind, {}), *PATHS.get(kind, {})):
        path = tuple(old.split("."))
        if any("_".join(path[start:]) == word for start in range(len(path))):
            return ".".join(new_path(kind, path)), new_value(kind, path, value)
    return key, value


def new_metric(name: str) -> str:
    """Translate the name of a metric."""
    for old, new in METRICS.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def migrate_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the keys of a trainer's saved state."""
    new = {STATE.get(key, key): value for key, value in state.items()}
    if isinstance(new.get("optimizers"), dict):  # schema 1 had one without a list around it
        new["optimizers"] = [new["optimizers"]]
    if "explorer" in new:
        new["explorer"] = {EXPLORER.get(key, key): value for key, value in new["explorer"].items()}
    return new


def _leaves(tree: Mapping[str, Any], prefix: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def _put(tree: dict[str, Any], path: Keys, value: Any, source: str) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    if path[-1] in tree:
        raise UserError(f"{source}: {'.'.join(path)} is given twice, under its old name and its new one")
    tree[path[-1]] = value
