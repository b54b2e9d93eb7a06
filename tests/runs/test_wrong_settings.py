"""What each trainer refuses on its command line: one sentence that names the flag, and no folder."""

from contextlib import suppress

import pytest
from run_folders import refused
from test_trainers import EVERY_KIND, KINDS, main
from trained import CAR, MEMORY

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.kinds import trainer_class
from dqn_memory.runs.settings import check_numbers, flag_names
from dqn_memory.runs.toml import from_toml

# Numbers of each kind that take -1, as their checks compare them with others or they may be anything.
PRIOR = "local_window max_norm max_span mu mu_max ramp regulariser_weight sigma span"
ACTING = f"{PRIOR} epsilon_end epsilon_start sticky_exponent"
NEGATIVE = {
    "q_network": f"{ACTING} capacity",
    "pqn": ACTING,
    "ppo": ACTING,
    "unizero": f"{PRIOR} capacity frame_skip most_frames noops size sticky stop_at_return",
    "glam": "balls batch_length blink burn_in capacity grid maximum screen stop_at_return",
}

GAME = "--env ALE/Pong-v5"
ROLLOUTS = [
    ("--architecture dbgfqn", "--architecture dbgfqn encodes positions in a window"),
    ("--architecture dbgfqn --position-encoding none", "cannot act step by step from a carried state"),
    ("--position-encoding learned", "--position-encoding learned encodes positions in a window"),
    ("--epsilon-end 0.5 --epsilon-start 0", "must satisfy 0 <= end <= start <= 1"),
    ("--prepopulate 4", "--prepopulate 4 fills a replay"),
    ("--dropout 0.1", "--dropout 0.1 would change the network's outputs"),
    ("--minibatches 5", "--minibatches 5 is more than --num-envs 4"),
    ("--architecture gru --prior gaussian", "--prior gaussian changes nothing: gru has no attention"),
    ("--engine compile", "--engine compile is for the window learner"),
    ("--config paper", "--config paper is a preset of dqn_memory.train"),
    ("--config studies/memories", "run it by python -m dqn_memory.study.run memories"),
]
WRONG = {
    "q_network": [
        ("--architecture dgfq", "dgfqn"),
        ("--prior gausian", "gaussian"),
        ("--config pape", "paper"),
        ("--architecture dqn", "--layers 0 only"),
        ("--heads 3", "--heads 3 does not divide --width 16"),
        ("--prior local --local-window 8", "must be below --context"),
        ("--ema-decay 1", "--ema-decay 1.0 must be"),
        ("--acting-state episode", "has no window positions to encode; use a memory that streams"),
        ("--acting-state episode --position-encoding none", "needs a memory that streams"),
        ("--capacity 31", "31 must hold at least one window of each environment, --num-envs 4 x --context 8"),
        ("--capacity 1000000000000", "lower --capacity"),
        ("--architecture dbgfqn --layers 2 --loss-positions prefixes", "sees later steps; use ends:4"),
        ("--loss-positions ends:²", "'ends:²' is not known"),
        (f"--loss-positions ends:{10**20}", f"'ends:{10**20}' is not known"),
        ("--n-step 9", "--n-step 9 is longer than a window of --context 8"),
        ("--prior adaptive --span 4 --regulariser l1", "changes nothing without a --regulariser-weight"),
        ("--regulariser l1 --regulariser-weight 1", "--regulariser: the causal prior learns no span"),
        ("--prior gaussian --max-norm 2", "--max-norm: the gaussian prior learns no span"),
        ("--prior-learning-rate 1", "--prior-learning-rate 1.0 changes nothing"),
        ("--form paper_equations --head-width 8", "--head-width 8 changes nothing"),
        ("--learning-starts 601", "--total-steps 600 in --num-envs 4 would never update the network"),
        ("--prepopulate 601", "would never update the network"),
        ("--regulariser-weight -1", "--regulariser-weight -1.0 of the prior's penalty must not be negative"),
    ],
    "pqn": ROLLOUTS,
    "ppo": [*ROLLOUTS, ("--epsilon-start 0.5", "--epsilon-start 0.5")],
    "unizero": [
        (f"{GAME} --path none", "--path none is for environments that are read from a file"),
        ("--env ALE/Pongg-v5", "pong"),
        ("--prior gausian", "gaussian"),
        ("--config unizero/smok", "unizero/smoke"),
        ("--prior local --local-window 10", "does not fit"),
        ("--context 12", "--context 12 tokens do not fit"),
        ("--heads 3", "--heads 3 does not divide --width 32"),
        ("--capacity 20", "--capacity 20 is too small: 4 environments"),
        ("--learning-starts 201", "--total-steps 200 in --num-envs 4 would never update the model"),
        ("--replay-ratio 0", "would never update the model"),
        ("--n-step 46", "would never update the model"),
        ("--target-update-rate 0", "--target-update-rate 0.0 must be"),
        ("--frame-skip 0", "--frame-skip 0 must"),
        ("--regulariser l1 --regulariser-weight -1", "--regulariser-weight -1.0 must not be negative"),
    ],
    "glam": [
        (f"{GAME} --path none", "--path none is for environments that are read from a file"),
        ("--env Pixel/BlinkingCach-v0", "BlinkingCatch"),
        ("--env CartPole-v1", "needs frames Box(0, 255, (3, 8, 8), uint8)"),
        ("--config glam/smok", "glam/smoke"),
        ("--capacity 10", "--capacity 10 is too small: 2 environments"),
        ("--maximum 2", "--maximum 2 must be at least --start 4"),
        ("--grid 2", "--grid of Blinking Catch must be from 3 to 16 cells, not 2"),
        ("--grid 9", "--screen of Blinking Catch must be from 9"),
        ("--learning-starts 80", "--total-steps 64 in --num-envs 2 would never update the world model"),
        ("--batch-length 33", "would never update the world model"),
        ("--burn-in 11", "--burn-in 11 must be at least 0 and below --batch-length 12"),
        ("--sequence storm --heads 3", "--heads 3 must divide --width 8"),
        ("--model-replay-ratio 0", "would never update the world model"),
        ("--agent-starts 65", "would never update the agent"),
        ("--context 40", "would never update the agent"),
        ("--backend triton", "--backend triton of mamba cannot be used"),
    ],
}
EVERYWHERE = [
    ("--env Gridverse/Memory-6x6-v0", MEMORY),
    ("--env POMDP/CarFlag", "lacks its version; give POMDP/CarFlag-v0"),
    (f"{GAME} --observation-key x", "observation_key 'x' chooses from a dictionary"),
    (f"--env {CAR} --observation-key x", "observation_key 'x' chooses from a dictionary"),
    (f"{GAME} --observe state", "--observe state needs an environment of this suite"),
    ("--plugin no_such_module", "no_such_module"),
    (f"{GAME} --env-workers 2", "in threads of its own"),
    (f"--env {CAR} --env-workers 2", f"--env-workers 2: {CAR} steps all copies at once"),
    ("--engine cudagraph --device cpu", "--engine cudagraph needs --device cuda"),
    ("--device meta", "--device meta cannot be used here"),
    (f"--seed {2**63}", f"--seed {2**63} must"),
    ("--threads 1025", "--threads 1025 must lie between 1 and 1024"),
]
GOALS = {"unizero": "stop-at-return", "glam": "stop-at-return"}  # of others a success
ROWS = [(kind, *row) for kind in KINDS for row in (*WRONG[kind], *EVERYWHERE)] + [
    (kind, f"--{goal} 1 --evaluate-every 0", f"--{goal} 1.0 needs evaluations on the way")
    for kind, goal in ((kind, GOALS.get(kind, "stop-at-success")) for kind in KINDS)
]


def refusing(kind, value):
    """The numbers of a kind, by their flags, and those that refuse a value where it alone is set."""
    config_class, numbers, refused = trainer_class(kind).config_class, set(), set()
    for path, flag in flag_names(config_class()).items():
        with suppress(UserError):  # it is no number
            config = from_toml(config_class, f"schema = 2\n{path} = {value}", "file")
            numbers.add(flag)
            try:
                check_numbers(config)
            except UserError as error:
                assert str(error).startswith(f"--{flag.replace('_', '-')} ")
                refused.add(flag)
    return numbers, refused


@EVERY_KIND
def test_a_number_beyond_its_bound_is_refused_by_its_flag(kind):
    numbers, refused = refusing(kind, "-1")
    assert numbers - refused == set(NEGATIVE[kind].split())
    assert {"num_envs", "total_steps", "width"} <= refusing(kind, "0")[1] < refused
    assert {"gamma"} < refusing(kind, "2.0")[1]
    numbers, refused = refusing(kind, "nan")
    assert numbers == refused


@pytest.mark.parametrize(("kind", "arguments", "words"), ROWS)
def test_wrong_input_is_one_sentence_and_leaves_no_folder(tmp_path, capsys, kind, arguments, words):
    run = tmp_path / "run"
    assert words in refused(capsys, KINDS[kind].flags(run, *arguments.split()), main(kind))
    assert not run.exists()
