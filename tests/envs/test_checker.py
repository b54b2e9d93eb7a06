"""The checker of vector environments: it passes every world of ours and Gymnasium's own, and finds planted defects."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from world_keywords import IDS, keywords

from envs.adapters import WorldEnv, WorldVectorEnv
from envs.checker import check_registered, check_vector_env
from envs.errors import UserError

CARDS, LIMIT = "POMDP/MemoryCards-v0", {"pairs": 2, "time_limit": 9}
SAME_STEP, NEXT_STEP = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP


@pytest.mark.parametrize("id", IDS)
def test_every_world_is_clean(id):
    check_registered(id, steps=45, **keywords(id, time_limit=12))


def test_dictionaries_are_clean():
    check_registered("Gridverse/Keydoor-5x5-v0", steps=45, time_limit=12, dictionary=True)


def test_gymnasiums_own_vector_environment_is_clean():
    def make():
        return gymnasium.make(CARDS, **LIMIT)

    check_vector_env(lambda count, mode: SyncVectorEnv([make] * count, autoreset_mode=mode), make)


class Defect(WorldVectorEnv):
    """Right but for what a subclass spoils."""

    def __init__(self, count, mode):
        super().__init__(CARDS, count, mode, **LIMIT)

    def step(self, actions):
        return self.spoil(*super().step(actions))

    def spoil(self, *result):
        return result


class FloatRewards(Defect):
    def spoil(self, observation, reward, *rest):
        return observation, reward.astype(np.float32), *rest


class OtherRewards(Defect):
    def spoil(self, observation, reward, *rest):
        return observation, reward - 1e-12, *rest


class NarrowObservations(Defect):
    def spoil(self, observation, *rest):
        return observation.astype(np.int32), *rest


class ObservationsOutside(Defect):
    def spoil(self, observation, *rest):
        return observation + 7, *rest


class ColumnRewards(Defect):
    def spoil(self, observation, reward, *rest):
        return observation, reward[:, None], *rest


class BothFlags(Defect):
    def spoil(self, observation, reward, terminated, truncated, info):
        return observation, reward, terminated, truncated | terminated, info


class EndsForCuts(Defect):
    def spoil(self, observation, reward, terminated, truncated, info):
        return observation, reward, terminated | truncated, truncated & False, info


class NoSuccess(Defect):
    def spoil(self, *result):
        result[-1].pop("success", None)
        result[-1].pop("_success", None)
        result[-1].get("final_info", {}).pop("success", None)
        return result


class SuccessEveryStep(Defect):
    def spoil(self, *result):
        result[-1].update(success=np.zeros(self.num_envs, bool), _success=np.ones(self.num_envs, bool))
        return result


class NoMask(Defect):
    def spoil(self, *result):
        result[-1].pop("_success", None)
        return result


class NoFinalObservation(Defect):
    def spoil(self, *result):
        result[-1].pop("final_obs", None)
        return result


class WrongFinalObservation(Defect):
    """The first observation of the next episode, where the last of this one should be."""

    def spoil(self, observation, *rest):
        if "final_obs" in rest[-1]:
            for index in np.flatnonzero(rest[-1]["_final_obs"]):
                rest[-1]["final_obs"][index] = observation[index]
        return observation, *rest


class FinalObservationsOfAll(Defect):
    def spoil(self, observation, *rest):
        if "final_obs" in rest[-1]:
            for index in np.flatnonzero(~rest[-1]["_final_obs"]):
                rest[-1]["final_obs"][index] = observation[index]
        return observation, *rest


class RewardForResets(Defect):
    def step(self, actions):
        idle = self._done.copy()
        observation, reward, *rest = super().step(actions)
        return observation, np.where(idle, -1.0, reward), *rest


class DrawsForResets(Defect):
    """A row that is only reset draws numbers as if it had been stepped too."""

    def _step_draws(self, idle):
        return super()._step_draws(None)


class ResetsEverything(Defect):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class SeedsEverything(Defect):
    """A masked reset with seeds also starts the random streams of the other rows anew."""

    def reset(self, *, seed=None, options=None):
        if isinstance(seed, list) and options and len(seed) == self.num_envs:
            self.streams.seed(seed)
        return super().reset(seed=seed, options=options)


class OneSeedForAll(Defect):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=[seed] * self.num_envs if isinstance(seed, int) else seed, options=options)


class SeedsAgainAndAgain(Defect):
    """A reset without a seed starts from the seed before."""

    last = None

    def reset(self, *, seed=None, options=None):
        self.last = self.last if seed is None else seed
        return super().reset(seed=self.last, options=options)


class TakesAnyMask(Defect):
    def _chosen(self, options):
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        return np.resize(np.asarray(mask, bool), self.num_envs)


class TakesAnySeeds(Defect):
    def _seeds(self, seed):
        return super()._seeds(seed[: self.num_envs] if isinstance(seed, list) else seed)


class ReusesItsArrays(Defect):
    def spoil(self, observation, *rest):
        if not hasattr(self, "kept"):
            self.kept = observation
        self.kept[:] = observation
        return self.kept, *rest


class SaysAnotherMode(Defect):
    def __init__(self, count, mode):
        super().__init__(count, mode)
        self.metadata = {**self.metadata, "autoreset_mode": NEXT_STEP}


class OneRowTooMany(Defect):
    def __init__(self, count, mode):
        super().__init__(count + 1, mode)


class OneActionTooMany(Defect):
    def __init__(self, count, mode):
        super().__init__(count, mode)
        self.single_action_space = gymnasium.spaces.Discrete(5)


class AnotherLimit(Defect):
    def __init__(self, count, mode):
        WorldVectorEnv.__init__(self, CARDS, count, mode, pairs=2, time_limit=10)


DEFECTS = {
    FloatRewards: "reward has the dtype float32",
    OtherRewards: "reward in row 0",
    NarrowObservations: "int32",
    ObservationsOutside: "is not in Box",
    ColumnRewards: "shape",
    BothFlags: "both terminated and truncated",
    EndsForCuts: "`terminated` in row",
    NoSuccess: "has no 'success'",
    SuccessEveryStep: "unexpected 'success'",
    NoMask: "_success",
    NoFinalObservation: "has no .final_obs.",
    WrongFinalObservation: "final_obs. in row",
    FinalObservationsOfAll: "is not None",
    RewardForResets: "reward in row",
    DrawsForResets: "observation in row",
    ResetsEverything: "not to be reset",
    SeedsEverything: "observation in row",
    OneSeedForAll: "after reset",
    SeedsAgainAndAgain: "reset\\(seed=None\\)",
    TakesAnyMask: "reset_mask",
    TakesAnySeeds: "list of 4 seeds",
    ReusesItsArrays: "written into",
    SaysAnotherMode: "autoreset_mode",
    OneRowTooMany: "num_envs is 4",
    OneActionTooMany: "single_action_space",
    AnotherLimit: "`truncated` in row",
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_are_found_and_told_in_one_sentence(defect):
    with pytest.raises(UserError, match=DEFECTS[defect]) as error:
        check_vector_env(defect, lambda: WorldEnv(CARDS, **LIMIT))
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")


def test_without_a_defect_the_same_class_is_clean():
    check_vector_env(Defect, lambda: WorldEnv(CARDS, **LIMIT))


def test_a_check_that_sees_no_episode_end_says_so():
    with pytest.raises(UserError, match="no episode ended in 5 steps"):
        check_registered(CARDS, steps=5)
