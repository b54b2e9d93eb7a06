"""What a run tells on its way: gradient norms of its parts, histograms, and the calls of callbacks."""

from dataclasses import replace

import pytest
import torch
from run_folders import assert_same_run, error_of, metrics
from test_trainers import KINDS, TWO_KINDS_SOON, trained
from trained import CARDS

from dqn_memory.api import Callback, train
from dqn_memory.runs import trackers
from dqn_memory.runs.base_config import OutputConfig
from dqn_memory.runs.folder import Run
from dqn_memory.runs.gradients import clip, parts_of
from dqn_memory.runs.kinds import trainer_class
from dqn_memory.runs.metrics import read_metrics
from dqn_memory.runs.toml import defaults

PARTS = {  # of each kind, by the norm of all of them
    "q_network": {"norm": ("embedding", "layers", "head")},
    "pqn": {"norm": ("embedding", "layers", "head", "predictor")},
    "ppo": {"norm": ("embedding", "layers", "head", "predictor", "critic")},
    "unizero": {"norm": ("encoder", "dynamics", "heads")},
    "glam": {
        "norm": (
            "encoder", "posterior_head", "prior_head", "sequence_model", "reward_head", "termination_head", "decoder",
        ),
        "agent_norm": ("actor", "critic"),
    },
}  # fmt: skip


# ---- gradient norms --------------------------------------------------------------------------------------------------
def gradients(scale):
    """A network with three parts, of which the last gets no gradient."""
    torch.manual_seed(0)
    network = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3) for name in ("a", "b", "c")})
    network["c"].requires_grad_(False)
    for number, parameter in enumerate(network.parameters()):
        parameter.grad = scale * (number + torch.randn_like(parameter)) if parameter.requires_grad else None
    return network


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_gradients_are_clipped_as_by_torch(scale):
    ours, theirs = gradients(scale), gradients(scale)
    found, expected = clip(parts_of(ours), 1.0), torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
    assert torch.equal(found["grad/norm"], expected)
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (own.grad is None and other.grad is None) or torch.equal(own.grad, other.grad)


def test_norms_are_those_of_each_part_before_the_clip():
    network = gradients(1e3)
    every = {name: torch.cat([each.grad.flatten() for each in network[name].parameters()]) for name in ("a", "b")}
    expected = {f"grad/{name}": float(each.norm()) for name, each in every.items()}
    found = clip(parts_of(network), 1.0)
    assert {name: float(found[name]) for name in found if name != "grad/norm"} == pytest.approx(expected)
    both = clip(parts_of(gradients(1.0), {"a": "both", "b": "both"}), 1.0)
    assert float(both["grad/both"]) == pytest.approx(float(both["grad/norm"]))


@TWO_KINDS_SOON
def test_every_trainer_logs_the_norm_of_each_part(tmp_path, kind):
    lines = [line for line in metrics(trained(kind, tmp_path)) if "grad/norm" in line]
    for total, parts in PARTS[kind].items():
        found = [[line[f"grad/{part}"] for part in parts] for line in lines if f"grad/{total}" in line]
        norms = [line[f"grad/{total}"] for line in lines if f"grad/{total}" in line]
        assert norms and all(0 <= max(each) <= norm <= sum(each) for each, norm in zip(found, norms, strict=True))


# ---- callbacks -------------------------------------------------------------------------------------------------------
class Recorder(Callback):
    """Writes down what it is told, and does something at one event."""

    def __init__(self, at=None, then=None):
        self.calls, self.at, self.then = [], at, then

    def note(self, name, trainer, step, value):
        assert step == trainer.steps
        self.calls.append((name, step, value))
        if (name, step) == self.at:
            self.then(trainer)

    def on_log(self, *given):
        self.note("log", *given)

    def on_evaluate(self, *given):
        self.note("evaluate", *given)

    def on_checkpoint(self, *given):
        self.note("checkpoint", *given)


EVENTS = ("--log-every", "200", "--evaluate-every", "200", "--checkpoint-every", "400", "--env", CARDS)
SETTINGS = {
    "env": CARDS, "width": 16, "heads": 2, "layers": 1, "context": 8, "num_envs": 4, "batch_size": 8, "threads": 1,
    "learning_starts": 64, "target_update_every": 20, "final_episodes": 4, "total_steps": 600, "memory_ablation": False,
    "log_every": 100, "evaluate_every": 200, "checkpoint_every": 0,
}  # fmt: skip


def called(kind, run, *callbacks, more=EVENTS, steps=600):
    """A run with callbacks that has ended."""
    trainer, opened = trainer_class(kind).start(KINDS[kind].flags(run, *more, steps=steps))
    with opened:
        trainer.train(opened, callbacks)
    return run


def test_calls_come_in_the_order_of_log_evaluation_and_checkpoint_to_all_callbacks(tmp_path):
    one, other = Recorder(), Recorder()
    run = called("q_network", tmp_path / "run", one, other)
    expected = [("log", 200), ("evaluate", 200), ("log", 400), ("evaluate", 400), ("checkpoint", 400), ("log", 600)]
    expected += [("evaluate", 600), ("checkpoint", 600)]
    assert [call[:2] for call in one.calls] == [call[:2] for call in other.calls] == expected
    told = [{"step": step} | (value if name == "log" else value.scalars()) for name, step, value in one.calls[:4]]
    lines = read_metrics(run / "metrics.jsonl")
    assert all(line.items() >= each.items() for line, each in zip(lines, told, strict=False))
    assert one.calls[4][2] == one.calls[-1][2] == run


@pytest.mark.long
def test_callbacks_that_do_nothing_change_nothing_also_over_a_resume(tmp_path):
    plain, watched = trained("q_network", tmp_path / "plain", *EVENTS, steps=600), tmp_path / "watched"
    called("q_network", watched, Callback(), steps=400)
    train(resume=watched, total_steps=600, callbacks=[Callback()])
    ended = next(line for line in metrics(watched) if "final/episodes" in line)
    assert [line for line in metrics(watched) if line != ended] == metrics(plain)
    assert_same_run(plain, watched)


@pytest.mark.long
@TWO_KINDS_SOON
def test_a_stop_ends_a_run_as_a_goal_does_and_the_run_can_go_on(tmp_path, kind):
    goal, step = KINDS[kind].stop
    goal, *more = goal.split()[:2], *goal.split()[2:]
    expected = trained(kind, tmp_path / "goal", *goal, *more, steps=2 * step)
    stopping = Recorder(("evaluate", step), lambda trainer: trainer.stop())
    run = called(kind, tmp_path / "stopped", stopping, more=more, steps=2 * step)
    assert metrics(run) == metrics(expected) and metrics(run)[-1]["step"] == step
    assert Run.open(run).load().step == step and stopping.calls[-1][:2] == ("checkpoint", step)
    train(kind, resume=run)
    assert metrics(run)[-1]["step"] == Run.open(run).load().step >= 2 * step


class Stopping(Callback):
    """Early stopping: it waits for an evaluation that is better than all before, twice."""

    def __init__(self):
        self.best, self.bad = -1.0, 0

    def on_evaluate(self, trainer, step, score):
        better = score.success.mean() > self.best
        self.best, self.bad = max(self.best, score.success.mean()), 0 if better else self.bad + 1
        if self.bad == 2:
            trainer.stop()


def test_a_run_without_progress_stops_early(tmp_path):
    run, score = train(**SETTINGS | {"total_steps": 4_000, "learning_rate": 1e-9}, run=tmp_path, callbacks=[Stopping()])
    scores = [line["eval/success_rate"] for line in metrics(run) if "eval/success_rate" in line]
    assert metrics(run)[-1]["step"] == 200 * len(scores) < 4_000 and max(scores[-2:]) <= scores[-3]
    assert score.success.mean() == metrics(run)[-1]["final/success_rate"]


class Pruned(Exception):
    """What a tuner raises to end a trial."""


class Trial:
    """Stands for a tuner's trial, which does not like the second value."""

    def __init__(self):
        self.values = {}

    def report(self, value, step):
        self.values[step] = value

    def should_prune(self):
        return len(self.values) == 2


class Pruning(Callback):
    def __init__(self, trial):
        self.trial = trial

    def on_evaluate(self, trainer, step, score):
        self.trial.report(score.success.mean(), step)
        if self.trial.should_prune():
            raise Pruned


@pytest.mark.long
def test_an_error_of_a_callback_ends_the_run_with_a_checkpoint_from_which_it_goes_on_exactly(tmp_path):
    whole, _ = train(**SETTINGS, run=tmp_path / "whole")
    trial, run = Trial(), tmp_path / "pruned"
    with pytest.raises(Pruned):
        train(**SETTINGS, run=run, callbacks=[Pruning(trial)])
    assert Run.open(run).load().step == 400
    assert trial.values == {line["step"]: line["eval/success_rate"] for line in metrics(run) if "eval/episodes" in line}
    assert not any("final/episodes" in line for line in metrics(run))
    train(resume=run)
    assert metrics(run) == metrics(whole)
    assert_same_run(whole, run)


def test_an_object_that_is_no_callback_is_refused_before_a_run_begins(tmp_path):
    for wrong in (5, Callback):
        assert "callbacks[1] is" in error_of(train, **SETTINGS, run=tmp_path / "run", callbacks=[Callback(), wrong])
    assert not (tmp_path / "run").exists()


# ---- histograms ------------------------------------------------------------------------------------------------------
def histograms(run):
    """The histograms in a run's event files, by step and name."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    events = [each for file in run.glob("events*") for each in LegacyEventFileLoader(str(file)).Load()]
    values = [(event.step, value) for event in events for value in event.summary.value]
    return {(step, value.tag): value.histo for step, value in values if value.HasField("histo")}


@TWO_KINDS_SOON
def test_histograms_are_of_every_trained_parameter_and_its_gradient_at_log_lines(tmp_path, kind):
    pytest.importorskip("tensorboard")
    run = trained(kind, tmp_path, "--histograms", "--track", "tensorboard", "--checkpoint-every", "0")
    found, saved = histograms(run), Run.open(run).load()
    logged = [line["step"] for line in metrics(run) if "charts/updates" in line]
    assert {step for step, _ in found} == set(logged)
    last = {name: each for (step, name), each in found.items() if step == logged[-1]}
    names = [name.removeprefix("parameters/") for name in last if name.startswith("parameters/")]
    gradients = [name.removeprefix("gradients/") for name in last if name.startswith("gradients/")]
    assert set(gradients) <= set(names) <= saved.weights.keys() and len(gradients) > len(names) / 2
    for name in names:
        assert last[f"parameters/{name}"].num == sum(last[f"parameters/{name}"].bucket) == saved.weights[name].numel()
    if logged[-1] == saved.step:
        weight = saved.weights[names[0]]
        assert last[f"parameters/{names[0]}"].sum == pytest.approx(float(weight.double().sum()), rel=1e-6)
        assert last[f"parameters/{names[0]}"].max == pytest.approx(float(weight.max()))


def test_a_run_without_the_flag_writes_no_histograms(tmp_path):
    pytest.importorskip("tensorboard")
    assert not histograms(trained("q_network", tmp_path, "--track", "tensorboard", steps=200))


@pytest.mark.parametrize("kind", KINDS)
def test_histograms_that_cannot_be_had_are_one_sentence(monkeypatch, kind):
    config = defaults(trainer_class(kind).config_class)
    asked = replace(config, output=OutputConfig(track=("csv",), histograms=True))
    assert "--histograms" in error_of(asked.check) and "--track csv tensorboard" in error_of(asked.check)
    monkeypatch.setattr(trackers, "has_extra", lambda name: False)
    asked = replace(config, output=OutputConfig(histograms=True))
    assert "--histograms: tensorboard is not installed" in error_of(asked.check)


def test_histograms_of_captured_updates_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dqn_memory.runs.base_config.ComputeConfig.check", lambda self: None)  # there may be no GPU
    trainer = trainer_class("pqn")
    config = trainer.configure(KINDS["pqn"].flags(tmp_path, "--env", CARDS, "--engine", "cudagraph", "--histograms"))
    assert "--histograms" in error_of(trainer, config) and "--engine eager" in error_of(trainer, config)
