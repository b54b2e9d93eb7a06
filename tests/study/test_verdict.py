"""The verdict on a task: from scores whose right answer is known, and from chance alone."""

import numpy as np
import pytest

from dqn_memory.study.verdict import NEEDED, NOTHING, UNKNOWN, judge

RANDOM = np.repeat([0.0, 1.0], [300, 100])  # random play wins a quarter
FAIL, WIN = [0.5, 0.48, 0.52], [1.0, 0.99, 0.98]


def scores(mlp=FAIL, clock=FAIL, frame_stack=FAIL, gru=FAIL, mingru=FAIL, attention=FAIL):
    return {
        "mlp": mlp, "clock": clock, "frame_stack": frame_stack, "gru": gru, "mingru": mingru, "attention": attention,
    }  # fmt: skip


CASES = {
    "all win": (scores(*[WIN] * 6), "no memory needed"),
    "only mlp fails": (scores(FAIL, *[WIN] * 5), "a clock is enough"),
    "four observations win": (scores(FAIL, FAIL, *[WIN] * 4), "the last few observations are enough"),
    "memories win": (scores(gru=WIN, mingru=WIN, attention=WIN), NEEDED),
    "one memory wins": (scores(attention=WIN), NEEDED),
    "memories win, and one run without": (scores(mlp=[0.5, 0.5, 0.99], gru=WIN, mingru=WIN, attention=WIN), UNKNOWN),
    "memories win, of two runs each": (scores(*[FAIL[:2]] * 3, *[WIN[:2]] * 3), NEEDED),
    "one memory wins, of two runs each": (scores(*[FAIL[:2]] * 5, WIN[:2]), UNKNOWN),
    "memories win, of one run each": (scores(*[FAIL[:1]] * 3, *[WIN[:1]] * 3), UNKNOWN),
    "one run of a memory wins": (scores(gru=[0.5, 0.5, 1.0]), UNKNOWN),
    "nobody comes near the best": (scores(*[[0.5, 0.5, 0.51]] * 6), UNKNOWN),
    "as random play": (scores(*[[0.25, 0.24, 0.27]] * 6), NOTHING),
    "worse than random play": (scores(*[[0.1, 0.0, 0.2]] * 6), NOTHING),
}


@pytest.mark.parametrize("case", CASES)
def test_known_answers(case):
    given, verdict = CASES[case]
    assert judge(given, RANDOM, 400, 1.0).verdict == verdict


def test_without_a_best_score_the_reached_one_counts():
    given = scores(*[[7.0, 7.1, 6.9]] * 6)
    returns = np.linspace(-1, 1, 200)
    assert judge(given, returns, 100, None).verdict == "no memory needed"
    assert judge(given, returns, 100, 100.0).verdict == UNKNOWN


def test_a_network_without_a_memory_explains_no_run_that_is_far_above_its_own():
    given = scores(*[[4.0, 4.1, 3.9]] * 3, gru=[9.0, 2.0, 1.0], mingru=[1.0] * 3, attention=[1.0] * 3)
    assert judge(given, np.linspace(-1, 1, 200), 100, None).verdict == UNKNOWN


def test_a_clock_that_beats_the_newest_observation_explains_what_is_reached():
    clock = [-0.5, -0.51, -0.49]
    given = scores(
        [-0.9, -0.91, -0.9], clock, [-0.9, -0.88, -0.9], [-0.8, -0.81, -0.8], [-0.85] * 3, [-0.8, -0.7, -0.75]
    )
    returns = np.random.default_rng(0).normal(-0.93, 0.03, 300)
    assert judge(given, returns, 100, 1.0).verdict == "a clock is enough"


def test_the_lead_is_that_of_the_best_memory_over_the_best_control():
    judged = judge(scores(clock=[0.6, 0.6, 0.6], attention=WIN), RANDOM, 400, 1.0)
    assert (judged.best, judged.control, judged.memory) == ("attention", "clock", "attention")
    assert judged.lead.point == pytest.approx(0.39) and judged.lead.low > 0.3


def test_the_interval_of_a_lead_of_three_seeds_holds_the_true_lead():
    draws, held = np.random.default_rng(0), 0
    for _ in range(200):
        lead = judge(scores(gru=draws.normal(0.9, 0.1, 3)), RANDOM, 400, 1.0).lead
        held += lead.low < 0.4 < lead.high
    assert held >= 180


@pytest.mark.parametrize("win_rate", [0.4, 0.7])
@pytest.mark.parametrize("seeds", [2, 3])
def test_one_control_that_is_as_good_as_memories_is_seldom_beaten(seeds, win_rate):
    draws, needed = np.random.default_rng(seeds), 0
    for _ in range(200):
        clock, *memories = 0.3 + 0.7 * (draws.random((4, seeds)) < win_rate) - draws.uniform(0, 0.02, (4, seeds))
        poor = draws.normal(0.3, 0.01, seeds)
        needed += judge(scores(poor, clock, poor, *memories), RANDOM, 400, 1.0).verdict == NEEDED
    assert needed <= 14


@pytest.mark.parametrize(("chance", "episodes"), [(0.003, 200), (0.001, 5000), (0.01, 300)])
def test_lucky_episodes_of_a_rare_success_are_not_learned(chance, episodes):
    draws, names = np.random.default_rng(0), list(scores())
    verdicts = []
    for _ in range(100):
        given = {name: (draws.binomial(50, chance, 3) / 50).tolist() for name in names}
        verdicts.append(judge(given, (draws.random(episodes) < chance).astype(float), 50, 1.0).verdict)
    assert verdicts.count(NOTHING) >= 97


def test_a_constant_return_is_not_learned():
    returns = np.full(5461, np.float32(0.1) * 12, np.float32)
    given = scores(*[[float(np.full(12, 0.1, np.float32).sum())] * 3] * 6)
    assert judge(given, returns, 400, None, win=1.2).verdict == NOTHING


@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
def test_chance_alone_seldom_needs_a_memory(seeds):
    draws, needed = np.random.default_rng(seeds), 0
    for _ in range(200):  # runs of every network win with the same probability
        wins = 0.5 + 0.5 * (draws.random((6, seeds)) < 0.4) + draws.normal(0, 0.01, (6, seeds))
        needed += judge(scores(*wins.tolist()), RANDOM, 400, 1.0).verdict == NEEDED
    assert needed <= 10


def test_noise_is_not_learned():
    draws = np.random.default_rng(3)
    verdicts = [
        judge(scores(*draws.normal(0, 1 / np.sqrt(100), (6, 3)).tolist()), draws.normal(0, 1, 500), 100, None).verdict
        for _ in range(200)
    ]
    assert verdicts.count(NOTHING) >= 198
