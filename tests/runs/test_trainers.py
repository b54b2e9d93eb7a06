"""What runs of every kind share: exact resume, kills at any moment, refusals, the end of a run, random streams."""

import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import glam_models
import gymnasium
import numpy as np
import pytest
import torch
import unizero_models
from run_folders import assert_same_run, error_of, metrics, printed, refused
from trained import CAR, CARDS, MEMORY, rollout_flags, training_flags

from dqn_memory.agent import Agent
from dqn_memory.analysis.episodes import play_in
from dqn_memory.evaluate import load_network
from dqn_memory.evaluate import main as evaluate
from dqn_memory.runs.checkpoint import Checkpoint
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.folder import Run
from dqn_memory.runs.kinds import check_kind, trainer_class
from dqn_memory.runs.metrics import METRICS, TIMES, Clock, read_metrics
from dqn_memory.runs.seeding import Streams, generator
from dqn_memory.runs.toml import defaults, from_toml, to_toml

LIMITS = "--time-limit 12 --max-episode-steps 12 --evaluate-every 0"
SHORT = f"--env {MEMORY} {LIMITS}"


@dataclass(frozen=True)
class Kind:
    """Tiny runs of one kind."""

    flags: Callable[..., list[str]]
    steps: tuple[int, int]  # where a run stops first, and how far it goes on
    resumed: tuple[str, ...]  # settings whose resume must be exact
    width: str  # the setting that decides the network's form
    stop: tuple[str, int]  # a goal that the first evaluation reaches, and its step


ROLLOUTS = {
    "flags": rollout_flags,
    "steps": (512, 1024),
    "width": "width = 16",
    "stop": ("--stop-at-success 0.0 --evaluate-every 256", 256),
}
KINDS = {
    "q_network": Kind(
        training_flags,
        (400, 600),
        (
            f"--env {MEMORY} --architecture dgfqn --epsilon-ladder 3 --sticky-exponent 2 --ema-decay 0.9",
            f"--env {CARDS} --architecture dbgfqn --capacity 320",
            "--env CartPole-v1 --architecture drqn --acting-state episode",
            "--env CartPole-v1 --architecture dgfqn --n-step 3 --checkpoint-every 100 --max-repeated-actions 150",
            f"--env {CAR} --config paper --prepopulate 100 --dropout 0.2",
            f"--env {CAR} --architecture gru --normalize-observation --normalize-reward --ema-decay 0.9",
            f"--env {MEMORY} --env Gridverse/Memory-7x7-v0=0.25 --architecture gru",
        ),
        "width = 16",
        ("--stop-at-success 0.0", 400),
    ),
    "pqn": Kind(
        resumed=(
            f"--env {MEMORY} --evaluate-every 256 --prediction-weight 1",
            f"--env {CARDS} --architecture mlstm --ema-decay 0",
            "--env CartPole-v1 --architecture gtrxl_memory --checkpoint-every 256 --max-repeated-actions 150",
            f"--env {CAR} --architecture attention --num-envs 8",  # as many rows as its kernels take
            "--env CartPole-v1 --normalize-observation --normalize-reward",
            "--env MiniGrid-MemoryS7-v0 --env MiniGrid-MemoryS9-v0 --checkpoint-every 256 --max-repeated-actions 150",
        ),
        **ROLLOUTS,
    ),
    "ppo": Kind(
        resumed=(
            f"--env {MEMORY} --evaluate-every 256",
            f"--env {CARDS}",
            f"--env {MEMORY} --env Gridverse/Memory-7x7-v0 --eval-env Gridverse/Memory-9x9-v0 --evaluate-every 256",
            "--env Control/MaskedPendulum-v0 --normalize-observation --normalize-reward --evaluate-every 256",
        ),
        **ROLLOUTS,
    ),
    "unizero": Kind(
        unizero_models.flags,
        (100, 200),
        (
            "--env CartPole-v1 --dropout 0.2 --prior gaussian --evaluate-every 100",
            "--env CartPole-v1 --checkpoint-every 20 --max-repeated-actions 30",
            f"{SHORT} --reset-history released --reanalyse-fraction 0.1 --capacity 100",
            f"{LIMITS} --env {CAR} --dynamics recurrent --root gumbel",
            f"{SHORT} --prepopulate 140 --terminal-fraction 0.5",  # it stops in the middle of its random steps
            "--env ALE/Pong-v5 --num-envs 2 --batch-size 4 --max-episode-steps 8 --evaluate-every 0 --clip-rewards "
            "--terminal-on-life-loss",
        ),
        "width = 32",
        ("--stop-at-return 1", 100),
    ),
    "glam": Kind(
        glam_models.flags,
        (42, 48),
        (
            "--dropout 0.2 --sequence storm --evaluate-every 36",
            "--imagination-memory carried --model-replay-ratio 0.5 --agent-replay-ratio 0.25 --capacity 40",
            "--start-from prior --act-before-observing --no-reset-at-episode-start --recent-windows 2 --horizon smooth "
            "--growth 1 --growth-every 8 --maximum 8 --returns released",
            "--learner-bfloat16 --agent-bfloat16",
            "--env ALE/Pong-v5 --num-envs 1 --screen 16 --max-episode-steps 6",
        ),
        "width = 8",
        ("--stop-at-return -9 --evaluate-every 40", 40),
    ),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
SOON = ("q_network", "unizero")  # the others share their code, and are long tests
MARKS = {kind: () if kind in SOON else pytest.mark.long for kind in KINDS}
TWO_KINDS_SOON = pytest.mark.parametrize("kind", [pytest.param(kind, marks=MARKS[kind]) for kind in KINDS])
SIGNALS = [
    *(pytest.param(kind, signal.SIGINT, "iterate", marks=MARKS[kind]) for kind in KINDS),
    pytest.param("q_network", signal.SIGTERM, "scalars", marks=pytest.mark.long),
]


def main(kind):
    return trainer_class(kind).main


def trained(kind, run, *more, steps=None):
    """A run that has ended."""
    main(kind)(KINDS[kind].flags(run, *more, steps=KINDS[kind].steps[0] if steps is None else steps))
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Gives the run of a kind that nothing stops, which no test may change."""
    folder = tmp_path_factory.mktemp("whole")
    return cache(lambda kind: trained(kind, folder / kind, "--checkpoint-every", "0"))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "more"), [(kind, more) for kind in KINDS for more in KINDS[kind].resumed])
def test_a_longer_resume_equals_an_uninterrupted_run(tmp_path, kind, more):
    first, last = KINDS[kind].steps
    whole = trained(kind, tmp_path / "whole", *more.split(), steps=last)
    parts = trained(kind, tmp_path / "parts", *more.split(), steps=first)
    main(kind)(["--resume", str(parts), "--total-steps", str(last)])
    ended = [line for line in metrics(parts) if any(name.startswith("final/") for name in line)]
    assert len(ended) == 2  # where it stopped first, and at its end
    assert [line for line in metrics(parts) if line != ended[0]] == metrics(whole)
    assert_same_run(whole, parts)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "steps", "longest"), [("unizero", 200, 50), ("glam", 96, 20)])
def test_a_smoke_preset_is_through_with_pong_in_a_minute(tmp_path, kind, steps, longest):
    """Through the command line; in processor time, which other work on the machine leaves alone."""
    run, before = tmp_path / "run", resource.getrusage(resource.RUSAGE_CHILDREN)
    preset = ["--config", f"{kind}/smoke", "--env", "ALE/Pong-v5", "--run", str(run)]
    command = [sys.executable, "-m", trainer_class(kind).__module__, *preset]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime  # imports and compiling included
    last = read_metrics(run / METRICS)[-1]
    assert last["step"] == steps and last["final/episodes"] == 2 and last["final/episodic_length"] == longest
    assert last["time/processor"] <= used < 60


@pytest.mark.long
@EVERY_KIND
def test_defaults_are_written_as_they_are_read(kind):
    """Else a study would not know a finished run as the one that it plans."""
    written = to_toml(defaults(trainer_class(kind).config_class))
    assert to_toml(from_toml(trainer_class(kind).config_class, written, "defaults")) == written


@pytest.mark.long  # tests/fuzz kills a run at moments of its writing, in the short tests too
@pytest.mark.parametrize(("kind", "every", "steps"), [("q_network", 100, 1200), ("ppo", 256, 4096)])
def test_a_run_killed_at_random_moments_ends_as_the_uninterrupted_one(tmp_path, kind, every, steps):
    more = f"--env {MEMORY} --checkpoint-every {every}"
    whole, killed = trained(kind, tmp_path / "whole", *more.split(), steps=steps), tmp_path / "killed"
    command = [sys.executable, "-m", trainer_class(kind).__module__]
    arguments, moment = KINDS[kind].flags(killed, *more.split(), steps=steps), random.Random(7)
    for _ in range(2):
        process = subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_new_checkpoint(killed, process)
        time.sleep(moment.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL  # else it was faster than the signal
        arguments = ["--resume", str(killed)]
    if Run.open(killed).load().step < steps:
        main(kind)(arguments)
    assert_same_run(whole, killed)
    assert metrics(whole) == metrics(killed)


def wait_for_new_checkpoint(run, process):
    manifest = run / "checkpoints" / "manifest.json"
    before = manifest.read_bytes() if manifest.exists() else None
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if manifest.exists() and manifest.read_bytes() != before:
            return
        time.sleep(0.02)


@pytest.mark.long
@EVERY_KIND
def test_a_killed_extension_goes_on_to_its_new_length(tmp_path, monkeypatch, kind):
    first, last = KINDS[kind].steps
    run, trainer = trained(kind, tmp_path / "run", "--checkpoint-every", "2"), trainer_class(kind)
    iterate = trainer.iterate

    def dying(training):
        if training.steps > (first + last) // 2:
            raise KeyboardInterrupt
        iterate(training)

    monkeypatch.setattr(trainer, "iterate", dying)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        main(kind)(["--resume", str(run), "--total-steps", str(last)])
    monkeypatch.setattr(trainer, "iterate", iterate)
    main(kind)(["--resume", str(run)])
    assert Run.open(run).load().step >= last
    whole = trained(kind, tmp_path / "whole", "--checkpoint-every", "2", steps=last)
    assert (run / "config.toml").read_text() == (whole / "config.toml").read_text().replace(str(whole), str(run))


@TWO_KINDS_SOON
def test_a_run_that_is_there_is_refused_in_one_sentence_and_stays_as_it_is(tmp_path, capsys, whole, kind):
    """Overwritten, trained beyond its end, of another kind, of another form, damaged."""
    first, last = KINDS[kind].steps
    run = Path(shutil.copytree(whole(kind), tmp_path / "run"))
    before = (run / "metrics.jsonl").read_bytes()
    assert "--resume" in refused(capsys, KINDS[kind].flags(run, steps=first), main(kind))
    done = Run.open(run).load().step
    assert f"complete at {done} steps" in refused(capsys, ["--resume", str(run)], main(kind))
    fewer = refused(capsys, ["--resume", str(run), "--total-steps", "8"], main(kind))
    assert f"--total-steps 8 is below the {done} steps that {run} has taken" in fewer
    other = next(name for name in KINDS if name != kind)
    foreign = refused(capsys, ["--resume", str(run)], main(other))
    assert f"its kind is '{kind}', not '{other}'; use python -m {trainer_class(kind).__module__}" in foreign
    width = KINDS[kind].width
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace(f"\n{width}\n", "\nwidth = 64\n"))
    fixed = refused(capsys, ["--resume", str(run), "--seed", "3"], main(kind))
    assert fixed.startswith("error: --seed cannot change in a resume; --resume takes --total-steps")
    misfit = refused(capsys, ["--resume", str(run), "--total-steps", str(last)], main(kind))
    assert "width = 64, but the checkpoint was made with " in misfit and "put that back, or train it anew" in misfit
    assert (run / "metrics.jsonl").read_bytes() == before
    weights = next((run / "checkpoints").rglob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-7])
    assert weights.name in refused(capsys, [str(run)], evaluate)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["q_network", "unizero", "glam"])  # those with a replay
def test_a_run_without_replay_says_that_its_resume_is_not_exact(tmp_path, capsys, kind):
    run = trained(kind, tmp_path / "run", "--checkpoint-replay", "none")
    assert Run.open(run).load().replay is None
    main(kind)(["--resume", str(run), "--total-steps", str(2 * KINDS[kind].steps[1])])
    assert "not exact" in capsys.readouterr().out


@TWO_KINDS_SOON
def test_a_run_ends_where_an_evaluation_is_good_enough(tmp_path, capsys, kind):
    goal, step = KINDS[kind].stop
    run = trained(kind, tmp_path / "run", *goal.split(), steps=5 * step)
    assert metrics(run)[-1]["step"] == step
    assert f"it reached {goal.split()[0]} " in refused(capsys, ["--resume", str(run)], main(kind))


@pytest.mark.long
@EVERY_KIND
def test_the_final_agent_is_judged_without_its_memory_where_asked(tmp_path, kind):
    asked = trained(kind, tmp_path / "asked", "--memory-ablation")
    unasked = trained(kind, tmp_path / "unasked")
    last, other = (metrics(run)[-1] for run in (asked, unasked))
    assert last["memory_ablation/episodes"] == last["final/episodes"] and "memory_ablation/episodes" not in other
    assert all(last[name] == other[name] for name in other if name.startswith("final/"))


def test_options_of_evaluate_are_refused_where_a_kind_has_none(whole, capsys):
    said = refused(capsys, [str(whole("q_network")), "--simulations", "3"], evaluate)
    assert "--simulations is not for runs of the kind 'q_network'; its own are --episodes" in said


def test_an_agent_of_ppo_is_judged_by_drawn_actions_too(whole, capsys):
    run = whole("ppo")
    both, sampled, greedy = (
        json.loads(printed(capsys, evaluate, run, "--episodes", 20, "--policy", policy, "--format", "json"))
        for policy in ("both", "sampled", "greedy")
    )
    assert both["sampled"] == sampled["sampled"] != both["greedy"] == greedy["greedy"]
    assert both["greedy"]["exhaustive"] and not both["sampled"]["exhaustive"]
    assert "greedy" not in sampled and "sampled" not in greedy


@pytest.mark.parametrize("policy", ["sampled", "greedy"])
def test_evaluations_of_ppo_act_as_the_config_says(tmp_path, capsys, policy):
    run = trained("ppo", tmp_path / "run", "--policy", policy)
    last = metrics(run)[-1]
    flags = ("--episodes", 8, "--seed", Streams.spawn(1).evaluation + last["step"], "--policy", policy)
    found = json.loads(printed(capsys, evaluate, run, *flags, "--format", "json"))
    assert found[policy]["return"] == pytest.approx(last["final/episodic_return"])
    assert ("sampled/episodic_return" in last) == (policy == "greedy")  # what the policy was trained for, too
    if policy == "greedy":
        sampled = json.loads(printed(capsys, evaluate, run, *flags[:-1], "sampled", "--format", "json"))["sampled"]
        assert sampled["return"] == pytest.approx(last["sampled/episodic_return"])


@pytest.mark.parametrize("kind", ["ppo", "glam"])
def test_an_agent_draws_its_actions_or_takes_the_most_probable(whole, kind):
    config = Agent.load(whole(kind)).config
    env = gymnasium.make(f"envs:{config.environment.env}", **config.env_kwargs(training=False))
    first = np.stack([env.reset(seed=0)[0]] * 64)

    def chosen(**options):
        agent = Agent.load(whole(kind), **options)
        return agent.act(first, [True] * 64), agent.q.argmax(1)

    (once, _), (again, _), (other, _) = (chosen(seed=seed, policy="sampled") for seed in (0, 0, 1))
    assert len(set(once)) > 1 and (once == again).all() and (once != other).any() and (once == chosen()[0]).all()
    greedy, best = chosen(policy="greedy")
    assert (greedy == best).all() and (greedy != once).any()


@pytest.mark.parametrize(("kind", "policy", "must"), [
    ("ppo", "best", "it must be 'sampled' or 'greedy'"), ("q_network", "greedy", "this agent has only one policy"),
])  # fmt: skip
def test_a_policy_that_an_agent_has_not_is_refused(whole, kind, policy, must):
    with pytest.raises(UserError, match=must):
        Agent.load(whole(kind), policy=policy)


def test_a_policy_decides_how_agents_act_and_what_is_filmed(tmp_path):
    run = trained("ppo", tmp_path / "run", "--policy", "greedy")
    agent = Agent.load(run)
    first = np.stack([gymnasium.make(f"envs:{MEMORY}").reset(seed=0)[0]] * 64)
    assert (agent.act(first, [True] * 64) == agent.q.argmax(1)).all()
    network, config, _ = load_network(run)
    setup = config.eval_setup(torch.device("cpu"))
    for sampled in (False, True):
        episode = play_in(replace(setup, sampled=sampled), network, seed=0)[0]
        assert (episode.action == episode.q.argmax(1)).all() != sampled


def test_actions_are_not_drawn_by_the_numbers_that_draw_the_environment(whole):
    network, config, _ = load_network(whole("ppo"))
    setup = config.eval_setup(torch.device("cpu"))
    vector, draws = setup.vector(2, 5)[0], setup.policy(network, 2, 5).draws
    assert not torch.equal(vector.generator.get_state(), draws.get_state())
    assert not torch.equal(generator(5).get_state(), draws.get_state())


def test_a_diverged_run_is_one_sentence_at_its_next_evaluation(tmp_path, capsys):
    flags = ["--learning-rate", "1e30", "--max-grad-norm", "1e30", "--evaluate-every", "256", "--log-every", "1000000"]
    with pytest.raises(SystemExit, match="2"):
        trained("ppo", tmp_path / "run", *flags)
    assert "error: the loss or its gradient was not finite at step" in capsys.readouterr().err.splitlines()[-1]


def test_a_kind_that_nobody_knows_is_one_sentence():
    assert "unknown kind of run 'dreamer'; known: glam, ppo, pqn, q_network, unizero" in error_of(
        trainer_class, "dreamer"
    )
    said = error_of(check_kind, Path("run"), Checkpoint(0, {}, {}, None, {"kind": "another program"}), "glam")
    assert said.endswith("is foreign: its kind is 'another program', not 'glam'")


def test_a_checkpoint_that_would_repeat_too_many_actions_starts_new_episodes(tmp_path, capsys):
    """Its log of actions stays short, and the replay's episodes end there as at a time limit."""
    more = ("--env", "CartPole-v1", "--checkpoint-every", "100")
    run = trained("q_network", tmp_path, *more, "--max-repeated-actions", "0")
    assert "step 100: new episodes, as a resume would repeat 100 actions\n" in capsys.readouterr().out
    saved = Run.open(run).load()
    assert saved.trainer["fleet"]["actions"].numel() == 0 and (saved.trainer["time"] == 0).all()
    columns = range(24, saved.replay.data["done"].shape[0], 25)  # four environments
    assert saved.replay.data["done"][columns].all() and not saved.replay.data["terminated"][columns].all()
    whole = trained("q_network", tmp_path / "whole", *more)
    assert Run.open(whole).load().trainer["fleet"]["actions"].numel() == 400


@pytest.mark.parametrize("most", [0, 1])
def test_what_a_checkpoint_holds_of_the_replay_is_not_cut_later(tmp_path, monkeypatch, most):
    trainer_kind = trainer_class("q_network")
    plain = trainer_kind.iterate

    def interrupted(self):
        plain(self)
        if not self.unfinished:
            signal.raise_signal(signal.SIGTERM)

    more = ("--env", "CartPole-v1", "--checkpoint-every", "0", "--max-repeated-actions", str(most))
    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(trainer_kind, "iterate", interrupted)
        trained("q_network", tmp_path / "run", *more)
    trainer, run = trainer_kind.start({"resume": tmp_path / "run"})
    assert bool(trainer.vector.log) == (most > 0)  # with 0 also a stop's checkpoint begins new episodes
    with run:
        trainer.train(run)
    held, saved = trainer.replay, run.load().replay
    assert torch.equal(held.columns(0, held.written)["done"], saved.data["done"])


@pytest.mark.parametrize(("kind", "number", "method"), SIGNALS)
def test_a_signal_saves_first_and_the_resumed_run_ends_as_any_other(
    tmp_path, monkeypatch, capsys, whole, kind, number, method
):
    trainer, before = trainer_class(kind), signal.default_int_handler
    found = signal.signal(number, before)  # a job in the background is started without it
    plain = getattr(trainer, method)

    def interrupted(self):
        if self.iterations == 4 or method == "scalars":  # which are asked for when a line of the log is due
            signal.raise_signal(number)
        return plain(self)

    expected = whole(kind)
    monkeypatch.setattr(trainer, method, interrupted)
    with pytest.raises(SystemExit) as stopped:
        trained(kind, tmp_path / "run", "--checkpoint-every", "0")
    assert stopped.value.code == 130 and signal.signal(number, found) is before
    saved = Run.open(tmp_path / "run").load()
    step, spent = saved.step, [float(saved.header[name]) for name in TIMES]
    asked, said = (line for line in capsys.readouterr().err.splitlines() if line.startswith("stop"))
    word = f"python -m {trainer.__module__} --resume {tmp_path / 'run'} goes on from its last checkpoint"
    assert asked.startswith("stopping after a checkpoint") and said == f"stopped at step {step}; {word}"
    assert 0 < step < KINDS[kind].steps[0]
    monkeypatch.setattr(trainer, method, plain)
    main(kind)(["--resume", str(tmp_path / "run")])
    assert_same_run(expected, tmp_path / "run")
    assert metrics(expected) == metrics(tmp_path / "run")
    last = read_metrics(tmp_path / "run" / METRICS)[-1]
    assert all(last[name] > seconds > 0 for name, seconds in zip(TIMES, spent, strict=True))


def test_seconds_go_on_from_the_checkpoint_not_from_the_last_line_before_it():
    clock = Clock()
    clock.saved = {"kind": "ppo", "time/elapsed": "60.0", "time/processor": "50.0"}
    clock.begin([{"step": 1, "time/elapsed": 40.0, "time/processor": 30.0}, {"step": 2, "eval/episodes": 9.0}])
    assert all(0 <= clock.scalars()[name] - before < 1 for name, before in zip(TIMES, (60, 50), strict=True))


@pytest.mark.parametrize(("kind", "more", "phases"), [
    ("q_network", "", [("prefill", 64), ("training", 600)]),
    ("q_network", "--prepopulate 80", [("prefill", 80), ("training", 600)]),
    ("unizero", "--prepopulate 100", [("prefill", 100), ("training", 200)]),
    ("glam", "--agent-starts 44", [("prefill", 32), ("world model", 44), ("training", 64)]),
    ("ppo", "", [("training", 512)]),
])  # fmt: skip
def test_a_progress_line_counts_to_the_end_of_what_the_run_does_now(tmp_path, kind, more, phases):
    trainer_type = trainer_class(kind)
    trainer = trainer_type(trainer_type.configure(KINDS[kind].flags(tmp_path, *more.split())))
    trainer.updates, found = 1, []
    for trainer.iterations in range(64):
        if kind == "q_network":
            trainer.replay.written = trainer.iterations
        if trainer.phase not in found:
            found.append(trainer.phase)
    assert found == phases


def test_a_second_signal_stops_at_once(tmp_path, monkeypatch, capsys):
    def interrupted(self):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it goes on")

    found = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(trainer_class("q_network"), "iterate", interrupted)
    with pytest.raises(SystemExit) as stopped:
        trained("q_network", tmp_path / "run")
    signal.signal(signal.SIGINT, found)
    assert stopped.value.code == 130 and "starts it over: nothing was saved yet" in capsys.readouterr().err


def test_ctrl_c_before_training_is_one_line_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trainer_class("q_network"), "configure", lambda argv: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(SystemExit) as stopped:
        trained("q_network", tmp_path / "run")
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "stopped before training began; the same command begins it again\n"


def put_in(run, saved, **state):
    """Save a loaded checkpoint of a run once more, with other parts of its trainer's state."""
    opened = Run.open(run)
    opened.resume()
    with opened:
        opened.save(saved.step, saved.weights, saved.trainer | state, None, saved.header)


def test_a_checkpoint_of_another_device_or_an_older_torch_is_taken_up_and_what_does_not_fit_is_not(tmp_path, capsys):
    """A generator's state is shorter on CUDA, and a captured update's learning rate is a tensor there."""
    run = trained("q_network", tmp_path, "--env", CARDS, steps=200)
    saved, resume = Run.open(run).load(), ["--resume", str(run), "--total-steps", "300"]
    put_in(run, saved, time=torch.zeros(3))
    said = refused(capsys, resume, main("q_network"))
    assert "is foreign: its state does not fit here (TypeError: time has another type or shape); train it anew" in said
    for group in saved.trainer["optimizers"][0]["param_groups"]:
        group["lr"] = torch.tensor(group["lr"])
        del group["decoupled_weight_decay"]
    put_in(run, saved, dropout_cuda=torch.zeros(16, dtype=torch.uint8))
    main("q_network")(resume)
    assert Run.open(run).load().step == 300


def test_streams_are_distinct_and_the_same_for_ever():
    first, other = Streams.spawn(0), Streams.spawn(2)
    # recorded: repeating an old run depends on these numbers
    assert (first.worlds, first.dropout) == (4_334_430_513_956_379_144, 7_076_583_287_685_412_047)
    seeds = [*vars(first).values(), *vars(other).values()]
    assert len(set(seeds)) == 14 and all(isinstance(seed, int) and 0 <= seed < 2**63 for seed in seeds)
