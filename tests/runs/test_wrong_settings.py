"""What each trainer refuses on its command line: one sentence that names the flag, and no folder."""

import re

import pytest
from run_folders import refused
from test_trainers import EVERY_KIND, KINDS, MEMORY, main

# Flags that share a bound: the first value beyond it, what is said, and the flags of each kind.
BOUNDS = {
    ("0", r"0 must be at least 1"): {
        "q_network": "threads time-limit final-episodes episodes width heads token-width update-every n-step "
        "batch-size updates-per-iteration target-update-every",
        "unizero": "threads simulations num-envs update-every channels hidden token-width episodes-per-env batch-size "
        "max-considered-actions",
        "glam": "threads time-limit num-rollouts batch-size episodes-per-env frame-skip width hidden layers start "
        "growth-every",
    },
    ("-1", r"-1(\.0)? must not be negative"): {
        "q_network": "terminal-weight-updates seed random-start-steps prepopulate log-every prior-learning-rate",
        "unizero": "seed segment-length weight-decay prior-learning-rate latent-weight entropy-weight span-diversity "
        "log-every checkpoint-every c1 value-scale noops target-update-every",
        "glam": "seed evaluate-every log-every noops model-replay-ratio recent-windows growth entropy-weight "
        "reward-weight",
    },
    ("0", r"0\.0 must be above 0"): {
        "q_network": "learning-rate tail-fraction terminal-weight",
        "unizero": "c2 max-grad-norm dirichlet-alpha",
        "glam": "agent-max-grad-norm learner-max-grad-norm agent-learning-rate learner-learning-rate",
    },
    ("2", r"2\.0 must lie between 0 and 1"): {
        "q_network": "gamma stop-at-success",
        "unizero": "gamma reanalyse-fraction target-update-rate dirichlet-fraction",
        "glam": "gamma lam slow-decay learner-final-lr-fraction agent-final-lr-fraction",
    },
    ("2", r"2\.0 must be at least 0 and below 1"): {"unizero": "sticky", "glam": "sticky"},
    ("nan", r"nan must be a finite number"): {
        "q_network": "learning-rate stop-at-success gamma",
        "unizero": "learning-rate stop-at-return",
        "glam": "learner-learning-rate stop-at-return entropy-weight reward-weight",
    },
}
BEYOND = [
    (kind, flag, value, words)
    for (value, words), flags in BOUNDS.items()
    for kind, names in flags.items()
    for flag in names.split()
]

GAME = "--env ALE/Pong-v5"
WRONG = {
    "q_network": [
        ("--env Gridverse/Memory-6x6-v0", MEMORY),
        ("--architecture dgfq", "dgfqn"),
        ("--prior gausian", "gaussian"),
        ("--config pape", "paper"),
        ("--architecture dqn", "--layers 0 only"),
        ("--heads 3", "--heads 3 does not divide --width 16"),
        ("--prior local --local-window 10", "must be below --context"),
        ("--acting padded", "--no-lengths"),
        ("--ema-decay 1", "--ema-decay 1.0 must be"),
        ("--acting-state episode", "has no place in a window to encode; use --position-encoding none"),
        ("--acting-state episode --position-encoding none", "needs a recurrent network"),
        ("--capacity 31", "31 must hold at least one window of each environment, --num-envs 4 x --context 8"),
        ("--capacity 1000000000000", "not enough memory for a tensor of"),
        ("--architecture dbgfqn --layers 2 --loss-positions prefixes", "use --layers 1 or ends:4"),
        ("--epsilon-ladder -2", "--epsilon-ladder -2.0 must not be negative"),
        ("--head-width -5", "--head-width -5 must be at least 1"),
        ("--action-embedding -1", "--action-embedding -1 must not be negative"),
        ("--layers -1", "--layers -1 must not be negative"),
        ("--learning-starts 601", "--total-steps 600 in --num-envs 4 would never update the network"),
        ("--prepopulate 601", "would never update the network"),
        ("--update-every 151", "every 151 iterations (--update-every)"),
        ("--max-grad-norm -1", "--max-grad-norm -1.0 must be above 0"),
        ("--regulariser-weight -1", "--regulariser-weight -1.0 of the prior's penalty must not be negative"),
        ("--gamma inf", "--gamma inf must be a finite number"),
        ("--env POMDP/CarFlag-v0 --observation-key x", "observation_key 'x' chooses from a dictionary"),
        (f"{GAME} --observation-key x", "observation_key 'x' chooses from a dictionary"),
    ],
    "unizero": [
        ("--env Gridverse/Memory-6x6-v0", MEMORY),
        ("--env ALE/Pongg-v5", "pong"),
        ("--prior gausian", "gaussian"),
        ("--config unizero/smok", "unizero/smoke"),
        ("--prior local --local-window 10", "does not fit"),
        ("--context 12", "--context 12 tokens do not fit"),
        ("--heads 3", "--heads 3 does not divide --width 32"),
        ("--gamma 0.9", "--discount 0.997"),
        ("--discount 0", "--discount 0.0 must be above 0 and at most 1"),
        ("--capacity 20", "--capacity 20 is too small: 4 environments"),
        ("--learning-starts 201", "--total-steps 200 in --num-envs 4 would never update the model"),
        ("--replay-ratio 0", "would never update the model"),
        ("--n-step 46", "would never update the model"),
        ("--betas 0.9 inf", "--betas inf must be a finite number"),
        ("--betas 1.5 0.9", "--betas 1.5 must be at least 0 and below 1"),
        ("--target-update-rate 0", "--target-update-rate 0 and --target-update-every 0 never change the target"),
        ("--frame-skip 0", "--frame-skip 0 must"),
        ("--regulariser l1 --regulariser-weight -1", "--regulariser-weight -1.0 must not be negative"),
        ("--backend torch --query-per node", "--query-per node needs trees that are walked on the CPU"),
        ("--dynamics recurrent --gate gru", "--gate gru changes nothing"),
        ("--dynamics gru --prior gaussian", "--prior gaussian changes nothing"),
        (f"--env {MEMORY} --observation-key foo", "--observation-key foo is for dictionary observations"),
    ],
    "glam": [
        ("--env Pixel/BlinkingCach-v0", "BlinkingCatch"),
        ("--env CartPole-v1", "needs frames Box(0, 255, (3, 8, 8), uint8)"),
        ("--config glam/smok", "glam/smoke"),
        ("--screen 12", "--screen 12 must be a power of two"),
        ("--capacity 10", "--capacity 10 is too small: 2 environments"),
        ("--maximum 2", "--maximum 2 must be at least --start 4"),
        ("--model-bins 1", "--model-bins 1 must"),
        ("--agent-bins 1", "--agent-bins 1 must"),
        ("--reward-weight inf", "--reward-weight inf must be a finite number"),
        ("--grid 2", "--grid of Blinking Catch must be from 3 to 16 cells, not 2"),
        ("--grid 9", "--screen of Blinking Catch must be from 9"),
        ("--blink 0", "--blink of Blinking Catch must"),
        ("--learning-starts 80", "--total-steps 64 in --num-envs 2 would never update the world model"),
        ("--batch-length 33", "would never update the world model"),
        ("--model-replay-ratio 0", "would never update the world model"),
        ("--agent-starts 65", "would never update the agent"),
        ("--context 40", "would never update the agent"),
        ("--backend triton", "--backend triton of mamba cannot be used"),
    ],
}
WORLD_MODELS = [
    (f"{GAME} --observe state", "--observe state needs an environment of this suite"),
    (f"{GAME} --path none", "--path none is for environments that are read from a file"),
    (f"{GAME} --observation-key x", "--observation-key x is for dictionary observations"),
]
EVERYWHERE = [
    ("--plugin no_such_module", "no_such_module"),
    ("--engine cudagraph --device cpu", "--engine cudagraph needs --device cuda"),
    ("--device meta", "--device meta cannot be used here"),
]


def said(kind, run, capsys, arguments):
    """The sentence of a trainer that refuses and leaves no folder."""
    told = refused(capsys, KINDS[kind].flags(run, *arguments.split()), main(kind))
    assert not run.exists()
    return told


@pytest.mark.parametrize(("kind", "flag", "value", "words"), BEYOND)
def test_a_number_beyond_its_bound_is_one_sentence(tmp_path, capsys, kind, flag, value, words):
    told = said(kind, tmp_path / "run", capsys, f"--{flag} {value}")
    assert re.search(f"--{flag} {words}", told), told


@pytest.mark.parametrize(("kind", "arguments", "words"), [(kind, *row) for kind in KINDS for row in WRONG[kind]])
def test_wrong_input_is_one_sentence(tmp_path, capsys, kind, arguments, words):
    assert words in said(kind, tmp_path / "run", capsys, arguments)


@EVERY_KIND
def test_what_no_trainer_can_do_is_one_sentence(tmp_path, capsys, kind):
    for arguments, words in [*EVERYWHERE, *(WORLD_MODELS if kind != "q_network" else [])]:
        assert words in said(kind, tmp_path / "run", capsys, arguments)
