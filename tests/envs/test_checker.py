"""The checker of vector environments: it passes every world of ours and Gymnasium's own, and finds planted defects."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from run_folders import error_of
from vector_comparison import check_vector_env
from world_keywords import IDS, keywords

from envs.checker import check_registered
from envs.errors import UserError
from envs.gymnasium import WorldEnv, WorldVectorEnv

CARDS, LIMIT = "POMDP/MemoryCards-v0", {"pairs": 2, "time_limit": 9}


@pytest.mark.parametrize("id", IDS)
def test_every_world_is_clean(id):
    options = keywords(id, time_limit=12)
    check_registered(id, steps=45, **options)
    check_vector_env(
        lambda count, mode: gymnasium.make_vec(id, num_envs=count, autoreset_mode=mode, **options),
        lambda: gymnasium.make(id, **options),
        steps=45,
    )


def test_dictionaries_and_gymnasiums_own_vector_environment_are_clean():
    def make():
        return gymnasium.make("Gridverse/Keydoor-5x5-v0", time_limit=12, dictionary=True)

    assert "no episode ended in 5 steps" in error_of(check_registered, CARDS, steps=5)
    check_registered("Gridverse/Keydoor-5x5-v0", steps=45, time_limit=12, dictionary=True)
    check_vector_env(lambda count, mode: SyncVectorEnv([make] * count, autoreset_mode=mode), make)


def test_a_registered_world_whose_vector_differs_is_told_where(monkeypatch):
    step = WorldVectorEnv.step
    monkeypatch.setattr(WorldVectorEnv, "step", lambda self, actions: spoils(1, lambda reward: reward - 1)["spoil"](
        self, *step(self, actions)
    ))  # fmt: skip
    assert f"{CARDS}: at step 0 the reward of the vector environment is" in error_of(check_registered, CARDS, **LIMIT)


@pytest.mark.parametrize(("change", "kinds", "words"), [
    (lambda reward: reward.astype(np.float32), [WorldVectorEnv], ["reward", "of float32", "of float64"]),
    (lambda reward: reward * np.nan, [WorldVectorEnv, WorldEnv], ["reward", "holds nan"]),  # equal, but of no use
])  # fmt: skip
def test_another_dtype_and_nan_are_named(monkeypatch, change, kinds, words):
    for kind in kinds:
        monkeypatch.setattr(kind, "step", lambda self, action, step=kind.step: spoils(1, change)["spoil"](
            self, *step(self, action)
        ))  # fmt: skip
    message = error_of(check_registered, CARDS, **LIMIT)
    assert all(word in message for word in words), message


class Defect(WorldVectorEnv):
    """Right but for what a subclass spoils."""

    def __init__(self, count, mode):
        super().__init__(CARDS, count, mode, **LIMIT)

    def step(self, actions):
        return self.spoil(*super().step(actions))

    def spoil(self, *result):
        return result


def spoils(index, change):
    """Change one part of a step's result."""

    def spoil(self, *result):
        return *result[:index], change(result[index]), *result[index + 1 :]

    return {"spoil": spoil}


def both_flags(self, observation, reward, terminated, truncated, info):
    return observation, reward, terminated, truncated | terminated, info


def without(*names):
    """Infos that lack these entries, those of final infos too."""

    def spoil(self, *result):
        for info in (result[-1], result[-1].get("final_info", {})):
            for name in names:
                info.pop(name, None)
        return result

    return {"spoil": spoil}


def final_observations(of_finished):
    """The first observation of the next episode, where the last of this one or nothing should be."""

    def spoil(self, observation, *rest):
        if "final_obs" in rest[-1]:
            for index in np.flatnonzero(rest[-1]["_final_obs"] == of_finished):
                rest[-1]["final_obs"][index] = observation[index]
        return observation, *rest

    return {"spoil": spoil}


def reused_arrays(self, observation, *rest):
    if not hasattr(self, "kept"):
        self.kept = observation
    self.kept[:] = observation
    return self.kept, *rest


def reward_for_resets(self, actions):
    idle = self._done.copy()
    observation, reward, *rest = Defect.step(self, actions)
    return observation, np.where(idle, -1.0, reward), *rest


def seed_everything(self, *, seed=None, options=None):
    """A masked reset with seeds also restarts the random streams of the other rows."""
    if isinstance(seed, list) and options and len(seed) == self.num_envs:
        self.streams.seed(seed)
    return Defect.reset(self, seed=seed, options=options)


def one_seed_for_all(self, *, seed=None, options=None):
    return Defect.reset(self, seed=[seed] * self.num_envs if isinstance(seed, int) else seed, options=options)


def seed_again_and_again(self, *, seed=None, options=None):
    """A reset without a seed starts from the seed before."""
    self.last = getattr(self, "last", None) if seed is None else seed
    return Defect.reset(self, seed=self.last, options=options)


def take_any_mask(self, options):
    mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
    return np.resize(np.asarray(mask, bool), self.num_envs)


def take_any_seeds(self, seed):
    return Defect._seeds(self, seed[: self.num_envs] if isinstance(seed, list) else seed)


def another_mode(self, count, mode):
    Defect.__init__(self, count, mode)
    self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}


def success_every_step(self, *result):
    result[-1].update(success=np.zeros(self.num_envs, bool), _success=np.ones(self.num_envs, bool))
    return result


DEFECTS = {  # what a subclass does, and what the sentence says
    "float rewards": (spoils(1, lambda reward: reward.astype(np.float32)), "reward in row 0 .*float32"),
    "other rewards": (spoils(1, lambda reward: reward - 1e-12), "reward in row 0"),
    "rewards in a column": (spoils(1, lambda reward: reward[:, None]), "shape"),
    "both flags": ({"spoil": both_flags}, "both terminated and truncated"),
    "no success": (without("success", "_success"), "has no 'success'"),
    "success every step": ({"spoil": success_every_step}, "unexpected 'success'"),
    "no mask": (without("_success"), "_success"),
    "no final observation": (without("final_obs"), "has no 'final_obs'"),
    "wrong final observation": (final_observations(of_finished=True), "'final_obs' is"),
    "final observations of all": (final_observations(of_finished=False), "unexpected 'final_obs'"),
    "rewards for resets": ({"step": reward_for_resets}, "reward in row"),
    "draws for resets": ({"_step_draws": lambda self, idle: Defect._step_draws(self, None)}, "observation in row"),
    "resets everything": ({"reset": lambda self, seed=None, options=None: Defect.reset(self, seed=seed)}, "not to be"),
    "seeds everything": ({"reset": seed_everything}, "observation in row"),
    "one seed for all": ({"reset": one_seed_for_all}, "after reset"),
    "seeds again and again": ({"reset": seed_again_and_again}, "reset\\(seed=None\\)"),
    "takes any mask": ({"_chosen": take_any_mask}, "reset_mask"),
    "takes any seeds": ({"_seeds": take_any_seeds}, "list of 4 seeds"),
    "reuses its arrays": ({"spoil": reused_arrays}, "overwrites arrays"),
    "says another mode": ({"__init__": another_mode}, "autoreset_mode"),
    "one row too many": ({"__init__": lambda self, n, mode: Defect.__init__(self, n + 1, mode)}, "num_envs is 4"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_are_found_and_told_in_one_sentence(defect):
    members, words = DEFECTS[defect]
    with pytest.raises(UserError, match=words) as error:
        check_vector_env(type("Spoiled", (Defect,), members), lambda: WorldEnv(CARDS, **LIMIT))
    assert "\n" not in str(error.value) and str(error.value).endswith(".")
