"""A study's file says which runs there are; what it says wrongly is told in one sentence, before anything runs."""

from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints

import pytest
from run_folders import error_of

from dqn_memory.config import TrainConfig
from dqn_memory.runs import kinds
from dqn_memory.runs.settings import preset_names
from dqn_memory.runs.toml import from_toml
from dqn_memory.study.definition import expand, parse_definition, read_definition, shipped
from dqn_memory.train import QTrainer

MEMORY, FLAG = "Gridverse/Memory-5x5-v0", "POMDP/CarFlag-v0"
GOOD = f"""
title = "Two worlds"
kind = "q_network"
[base]
config = "demo"
total-steps = 500
learning-starts = 64
prepopulate = 0
heads = 2
[axes]
seed = [1, 2]
world = ["{MEMORY}", {{ name = "car", env = "{FLAG}", width = 32, config = "car-flag" }}]
architecture = ["dgfqn", {{ name = "dtqn, mu 2", architecture = "dtqn4", prior = "gaussian", mu = 2 }}]
gamma = [0.9]
[[skip]]
world = "car"
architecture = ["dgfqn"]
[smoke.base]
total_steps = 70
[smoke.axes]
seed = [3]
"""


def runs(text=GOOD, smoke=False):
    return expand(parse_definition(text, "my.toml", "my", smoke))


def refused(text, smoke=False):
    sentence = error_of(runs, text, smoke)
    assert sentence.startswith("my.toml")
    return sentence


def test_a_run_for_every_combination_by_a_stable_name():
    assert [run.name for run in runs()] == [
        "Gridverse-Memory-5x5-v0__dgfqn__gamma-0.9__seed-1",
        "Gridverse-Memory-5x5-v0__dtqn--mu-2__gamma-0.9__seed-1",
        "car__dtqn--mu-2__gamma-0.9__seed-1",
        "Gridverse-Memory-5x5-v0__dgfqn__gamma-0.9__seed-2",
        "Gridverse-Memory-5x5-v0__dtqn--mu-2__gamma-0.9__seed-2",
        "car__dtqn--mu-2__gamma-0.9__seed-2",
    ]
    assert runs()[2].axes == {"seed": 1, "world": "car", "architecture": "dtqn, mu 2", "gamma": 0.9}
    more = GOOD.replace("[1, 2]", "[5, 1, 2]").replace('["dgfqn"', '["drqn", "dgfqn"', 1)
    assert {run.name for run in runs()} < {run.name for run in runs(more)}
    for label in ("1", '["1"]'):  # numbers are left out by their text too
        assert len(runs(GOOD.replace("[smoke.base]", f"[[skip]]\nseed = {label}\n[smoke.base]"))) == 3


def test_a_list_of_environments_is_one_mixture():
    text = GOOD.replace(f'["{MEMORY}",', f'[["{MEMORY}", "Gridverse/Memory-7x7-v0=0.25"],')
    first = runs(text)[0]
    assert first.name == "Gridverse-Memory-5x5-v0-+-Gridverse-Memory-7x7-v0-0.25__dgfqn__gamma-0.9__seed-1"
    assert first.config.environment.ids == (MEMORY, "Gridverse/Memory-7x7-v0")
    unknown = text.replace("Memory-7x7", "Memory-8x8")
    assert "Memory-8x8" in refused(unknown)


def test_two_combinations_never_share_a_name():
    text = GOOD.replace('name = "car"', 'name = "a__b"').replace('world = "car"\narchitecture', "architecture")
    text = text.replace('"dgfqn", {', '"dgfqn", { name = "c", architecture = "drqn" }, {')
    assert len({run.name for run in runs(text)}) == 8
    text = text.replace(f'"{MEMORY}"', f'{{ name = "A", env = "{MEMORY}" }}').replace('"dtqn, mu 2"', '"b__c"')
    assert "two combinations would be called a__b__c__gamma-0.9__seed-1; name every value once" in refused(text)


def test_settings_reach_the_trainers_config_in_the_order_of_its_command_line():
    first, second, third = [run.config for run in runs()][:3]
    assert (first.environment.env, first.network.architecture, first.seed) == (MEMORY, "dgfqn", 1)
    assert (first.total_steps, first.network.heads, first.learner.gamma) == (500, 2, 0.9)
    assert first.network.context == 24  # the base's preset
    assert (second.network.prior.kind, second.network.prior.mu) == ("gaussian", 2.0)
    # the bundle's preset comes after the base's, and both before settings
    assert (third.environment.env, third.network.context, third.network.width) == (FLAG, 32, 32)
    assert (third.total_steps, third.network.heads) == (500, 2)
    assert runs(GOOD.replace("heads = 2", '"network.heads" = 2')) == runs()  # a setting goes by its path too


def test_the_config_is_complete_and_says_the_threads():
    (first, *_) = runs()
    assert from_toml(TrainConfig, first.toml, "x") == first.config
    assert first.config.compute.threads == 1
    definition = parse_definition(GOOD.replace('"demo"', '"prior-local"'), "my.toml", "my")  # demo says its threads
    three = replace(definition, resources=replace(definition.resources, cpus=3))
    assert expand(three)[0].config.compute.threads == 3
    assert runs(GOOD.replace("heads = 2", "threads = 2"))[0].config.compute.threads == 2


def test_the_cut_replaces_axes_and_lays_settings_over():
    cut = runs(smoke=True)
    assert {run.config.seed for run in cut} == {3} and {run.config.total_steps for run in cut} == {70}
    assert cut[0].config.network.heads == 2 and len(cut) == 3
    assert parse_definition(GOOD, "my.toml", "my", smoke=True).name == "my-smoke"


@pytest.mark.parametrize(
    "old, new, told",
    [
        ('kind = "q_network"', "", "the key 'kind' is missing"),
        ('"q_network"', '"q_netwrok"', "did you mean 'q_network'?"),
        ("heads =", "haeds =", "unknown setting 'haeds'; did you mean 'heads'"),
        ("heads = 2", 'heads = "two"', "network.heads must be an integer, not a string"),
        ("heads = 2", "heads = 3", "--heads 3 does not divide --width"),
        ("heads = 2", 'run = "here"', "the study chooses the run folders itself"),
        ("Memory-5x5", "Memmory-5x5", "did you mean 'Gridverse/Memory-5x5-v0'"),
        ('"gaussian"', '"gausian"', "did you mean 'gaussian'?"),
        ("seed = [1, 2]", "sead = [1, 2]", "the axis 'axes.seed' is missing"),
        ("seed = [1, 2]", "seed = []", "no run is left; give each axis a value, and skip fewer combinations"),
        ("[1, 2]", '[{ name = "one", seed = 1 }]', "axes.seed holds 'one', but a seed is a whole number"),
        ("title", "schema = 3\ntitle", "schema 3 is not known here; this version reads 2"),
        ("[1, 2]", "[1, 1]", "two combinations would be called Gridverse-Memory-5x5-v0__dgfqn__gamma-0.9__seed-1"),
        ("gamma = [0.9]", "mu = [0.9]", "the axes architecture and mu both set network.prior.mu"),
        ("[smoke.axes]\nseed", "[smoke.axes]\nseet", "smoke: unknown axis 'seet'; did you mean 'seed'?"),
        ('world = "car"', 'world = "cat"', "skip.world: unknown value 'cat'; did you mean 'car'?"),
        ('world = "car"', 'wolrd = "car"', "skip: unknown axis 'wolrd'; did you mean 'world'?"),
        ('world = "car"\narchitecture = ["dgfqn"]', "", "skip: each of its tables must name at least one axis"),
        ('world = "car"', "world = []", "skip: each of its tables must name"),
        ("[[skip]]", "[resources]\ncpus = 0\n[[skip]]", "resources: --cpus 0 must be at least 1"),
        ("[[skip]]", "[resources]\ngpus = 1.5\n[[skip]]", "resources: --gpus 1.5 must be a share"),
        ('name = "car"', "name = 3", "axes.world[1] needs a name"),
        ('config = "demo"', "config = 3", "base.config must be a preset's name"),
        ("heads = 2", 'engine = "cudagraph"', "--engine cudagraph needs --device cuda"),
    ],
)
def test_what_is_wrong_is_told(old, new, told):
    assert old in GOOD and told in refused(GOOD.replace(old, new), smoke="smoke" in told)


def test_what_only_the_machine_of_a_run_can_tell_is_left_to_it():
    text = GOOD.replace("heads = 2", 'engine = "cudagraph"').replace("[[skip]]", "[resources]\ngpus = 0.5\n[[skip]]")
    assert runs(text)[0].config.compute.engine == "cudagraph"


def test_runs_that_set_no_engine_are_all_eager():
    assert {run.config.compute.engine for run in runs()} == {"eager"}


def test_a_trainer_that_is_not_installed_is_named(monkeypatch):
    gone = EntryPoint("gone", "gone_away:Trainer", kinds.TRAINERS)
    monkeypatch.setattr(kinds, "installed_trainers", lambda: EntryPoints([gone]))
    words = "the trainer gone is not installed here: there is no module gone_away"
    assert words in error_of(kinds.trainer_class, "gone")


def test_a_prior_of_the_world_model_starts_where_its_own_command_line_starts_it():
    text = GOOD.partition("[base]")[0].replace("q_network", "unizero")
    text += '[axes]\nworld = ["CartPole-v1"]\nseed = [1]\n'
    text += 'architecture = [{ prior = "gaussian_adaptive" }, { prior = "adaptive", span = 3.0 }]'
    found = {run.axes["architecture"]: run.config.model.prior.span for run in runs(text)}
    assert found == {"prior-gaussian_adaptive": 10.0, "prior-adaptive+span-3.0": 3.0}


NUMBERS = {
    "atari100k_priors": 26 * 8 * 5, "atari100k_glam": 26 * 5, "thesis_table1": 4 * 3 * 7, "thesis_table3": 27 * 5,
    "learning_to_focus_figure3": 4 * 4 * 5, "learning_to_focus_table2": 4 * 7 * 5, "glam_table2": 4 * 6 * 5,
    "table1": 23 * 4 * 5, "priors": 11 * 10, "first_evidence": 7 * 5 * 3, "smoke": 8, "rq1_feedforward_expansion": 50,
    "rq2_recurrent_sublayers": 70, "rq3_worlds": 23 * 4 * 3, "rq4_properties": 23 * 7 * 3, "rq5_hallucination": 60,
}  # fmt: skip


def test_the_promised_studies_are_shipped_and_are_no_presets():
    assert set(shipped()) >= set(NUMBERS)
    assert not [name for name in preset_names() if name.startswith("studies") or "table2" in name]


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_study_and_its_cut_expand(name):
    cut = expand(read_definition(name, smoke=True))
    assert 2 <= len(cut) <= 4 and all(run.config.total_steps <= 1_000 for run in cut)
    definition = read_definition(name)
    seeds = definition.axes["seed"]
    one = expand(replace(definition, axes={**definition.axes, "seed": seeds[:1]}))
    assert len(one) * len(seeds) == NUMBERS.get(name, len(one) * len(seeds)) > 1
    for resources in (definition.resources, read_definition(name, smoke=True).resources):
        assert resources.steps_per_second and resources.megabytes and resources.measured


@pytest.mark.parametrize("smoke", [False, True])
@pytest.mark.parametrize("name", [name for name in shipped() if read_definition(name).kind == "q_network"])
def test_every_architecture_of_a_shipped_study_can_be_trained(name, smoke):
    definition = read_definition(name, smoke=smoke)
    axes = {axis: values if axis == "architecture" else values[:1] for axis, values in definition.axes.items()}
    for run in expand(replace(definition, axes=axes)):
        small = replace(run.config.replay, capacity=max(run.config.replay.learning_starts, 2_000))
        here = replace(run.config.compute, device="cpu", engine="eager")
        QTrainer(replace(run.config, replay=small, compute=here))  # flags alone do not say whether a network is causal


def test_an_unknown_study_names_the_near_one():
    known = {"tabel1": "did you mean 'table1'", "nothing": "unknown study 'nothing'"}
    for name, words in (known | {"nothing.toml": "there is no file nothing.toml"}).items():
        assert words in error_of(read_definition, name)


@pytest.mark.parametrize(("given", "every"), [("", 6_000), ("evaluate_every = 200_000", 200_000)])
def test_a_short_study_of_rollouts_is_evaluated_on_the_way(given: str, every: int) -> None:
    text = f"""
title = "Short"
kind = "ppo"
[base]
total_steps = 60_000
{given}
[axes]
world = ["POMDP/CarFlag-v0"]
architecture = ["gru"]
seed = [1]
"""
    (run,) = expand(parse_definition(text, "short.toml", "short"))
    assert run.config.evaluation.evaluate_every == every


def test_a_width_beside_a_number_of_parameters_is_refused() -> None:
    text = """
title = "Both"
kind = "q_network"
[base]
match = "100k"
[axes]
world = ["POMDP/CarFlag-v0"]
architecture = [{ name = "wide", architecture = "dtqn4", width = 64 }]
seed = [1]
"""
    said = error_of(expand, parse_definition(text, "both.toml", "both"))
    assert "--width" in said and "--match 100k" in said


def test_a_title_that_no_report_could_show_in_time_is_refused() -> None:
    text = f'title = "{"*" * 20_000}"\nkind = "q_network"\n[axes]\nworld = ["POMDP/CarFlag-v0"]\n'
    text += 'architecture = ["gru"]\nseed = [1]\n'
    assert "title" in error_of(parse_definition, text, "long.toml", "long")
