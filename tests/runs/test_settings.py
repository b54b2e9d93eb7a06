"""Defaults < presets < flags; strict TOML both ways; complete help; plugins; bounds of numbers."""

import re
import sys
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hostile import within
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from run_folders import error_of

from dqn_memory.config import TrainConfig
from dqn_memory.ppo import PPOConfig
from dqn_memory.runs import settings
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.kinds import trainer_class
from dqn_memory.runs.settings import Bounds, check_numbers, check_parts, flag_names, flags_of, parse, preset_names
from dqn_memory.runs.toml import defaults, from_toml, to_toml
from envs.cli import load_plugins
from envs.files import read_text


@dataclass(frozen=True)
class Prior:
    """How attention falls off with distance."""

    kind: str = "causal"
    "form of the prior"
    mu: float = 6.0
    "centre, in steps"
    cap: float | None = None
    """largest span
    (None: the context length)"""


@dataclass(frozen=True)
class Layer:
    """One layer."""

    heads: int = 8
    "attention heads of the layer"
    dropout: float = 0.0
    "dropout inside the layer"
    prior: Prior = Prior()


@dataclass(frozen=True)
class Sample:
    """Train a sample agent."""

    trainer: ClassVar[str] = "sample"
    env: str = "Gridverse/Memory-5x5-v0"
    "id of the world"
    steps: int = 1000
    "environment steps"
    epsilon: float = 0.1
    "share of random actions"
    double: bool = True
    "double Q-learning"
    clip: float | None = 1.0
    "largest gradient norm"
    norm: Literal["post", "identity"] = "post"
    "order of the sublayers"
    dropout: float = 0.5
    "dropout of the embedding"
    buckets: tuple[int, ...] = (8, 16)
    "lengths that windows are trimmed to"
    pair: tuple[int, str] = (1, "a")
    plugin: settings.Repeatable = ()
    "modules to import first"
    layer: Layer = Layer()


@dataclass(frozen=True)
class Filed(Sample):
    """What only files can hold."""

    env_kwargs: dict[str, int | float | str | bool] = field(default_factory=dict)
    named: dict[str, Prior] = field(default_factory=dict)


@pytest.fixture
def presets(tmp_path: Path) -> Path:
    folder = tmp_path / "configs"
    (folder / "paper").mkdir(parents=True)
    (folder / "memory-7x7.toml").write_text('steps = 70\nenv = "seven"\n[layer.prior]\nmu = 7\n')
    (folder / "paper" / "dtqn.toml").write_text('steps = 50\nnorm = "identity"\n')
    return folder


def read(text: str) -> Filed:
    return from_toml(Filed, text, "sample.toml")


def test_preset_over_defaults_and_flag_over_preset_wherever_it_stands(presets):
    assert parse(Sample, [], presets) == Sample()
    for argv in (["--config", "memory-7x7", "--mu", "2.5"], ["--mu", "2.5", "--config", "memory-7x7"]):
        config = parse(Sample, argv, presets)
        assert (config.steps, config.env, config.layer.prior.mu) == (70, "seven", 2.5)
        assert config.epsilon == Sample().epsilon
    both = parse(Sample, ["--config=memory-7x7", "--config", str(presets / "paper" / "dtqn.toml")], presets)
    assert (both.steps, both.norm, both.env, both.layer.prior.mu) == (50, "identity", "seven", 7.0)
    assert parse(Sample, ["--config", "paper/dtqn", "--config", "memory-7x7"], presets).steps == 70


def test_flags_of_every_type(presets):
    argv = "--no-double --clip None --norm identity --buckets 4 5 6 --pair 2 b --plugin one --plugin two"
    wanted = Sample(double=False, clip=None, norm="identity", buckets=(4, 5, 6), pair=(2, "b"), plugin=("one", "two"))
    assert parse(Sample, argv.split(), presets) == wanted


def test_whole_numbers_may_be_written_by_powers_of_ten(presets, capsys):
    found = parse(Sample, ["--steps", "2.5e3", "--buckets", "1E1", "8", "--clip", "1"], presets)
    assert found == Sample(steps=2500, buckets=(10, 8))
    found = parse(Sample, {"steps": 1e6, "epsilon": 1.0}, presets)
    assert (found.steps, type(found.steps), type(found.epsilon)) == (1_000_000, int, float)
    for word in ("1.5", "1e-3", "1e400", "nan", "1e3x", ""):
        with pytest.raises(SystemExit):
            parse(Sample, ["--steps", word], presets)
        assert repr(word) in capsys.readouterr().err


def test_numbers_that_torch_cannot_hold_are_refused_by_their_flags():
    for value in (2**63, -(2**63), 10**30):
        assert error_of(check_numbers, Sample(steps=value)).startswith(f"--steps {value} ")
    check_numbers(Sample(steps=2**63 - 1))


def test_a_key_outside_its_table_is_told_where_it_belongs():
    assert error_of(from_toml, PPOConfig, 'schema = 2\nenv = "CartPole-v1"', "f.toml") == (
        "f.toml: unknown key 'env'; it belongs in the table [environment]"
    )


def test_none_is_none_by_name_too():
    given = {"position_encoding": None, "run": None, "config": None}
    assert parse(PPOConfig, given) == PPOConfig()
    assert "settings: total_steps must be an integer, not None" in error_of(parse, PPOConfig, {"total_steps": None})


@pytest.mark.parametrize("argv", [["--stepz", "3"], ["--steps", "3.5"], ["--norm", "pre"], ["--config"]])
def test_wrong_flags_end_with_code_two(argv, presets, capsys):
    with pytest.raises(SystemExit) as end:
        parse(Sample, argv, presets)
    assert end.value.code == 2
    assert argv[0].lstrip("-") in capsys.readouterr().err


def test_configs_that_cannot_be_read_are_one_sentence(tmp_path, presets):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for name, words in {
        "memory-7x": "--config: unknown preset 'memory-7x'; did you mean 'memory-7x7'? known: memory-7x7, paper/dtqn",
        "nowhere.toml": "--config nowhere.toml: no such file",
        str(tmp_path / "binary.toml"): "binary.toml: it is not UTF-8",
    }.items():
        assert words in error_of(parse, Sample, ["--config", name], presets)


@dataclass(frozen=True)
class Needy:
    trainer: ClassVar[str] = "sample"
    run: str
    "folder of the run"
    steps: int | None = None


def test_a_field_without_default_is_required(presets, tmp_path, capsys):
    assert parse(Needy, ["--run", "a"], presets) == Needy("a")
    path = tmp_path / "needy.toml"
    path.write_text(to_toml(Needy("b", 3)))
    assert parse(Needy, ["--config", str(path)], presets) == Needy("b", 3)
    with pytest.raises(SystemExit):
        parse(Needy, [], presets)
    assert "--run" in capsys.readouterr().err
    assert "needy: the key 'run' is missing" in error_of(from_toml, Needy, "steps = 1", "needy")


def test_flags_are_short_where_they_can_be_and_never_shared():
    names = flag_names(Sample())
    assert len(set(names.values())) == len(names)
    assert names["layer.prior.mu"] == "mu"
    assert names["layer.prior.kind"] == "prior"
    assert (names["dropout"], names["layer.dropout"]) == ("dropout", "layer_dropout")


def test_fields_that_cannot_be_told_apart_are_the_authors_mistake():
    @dataclass(frozen=True)
    class Inner:
        rate: float = 0.0

    @dataclass(frozen=True)
    class Outer:
        a_rate: float = 0.0
        rate: float = 0.0
        a: Inner = Inner()

    with pytest.raises(TypeError, match="--a-rate"):
        flag_names(Outer())


def test_help_shows_every_flag_and_every_word(presets, capsys):
    with pytest.raises(SystemExit) as end:
        parse(Sample, ["--config", "memory-7x7", "--help"], presets)
    assert end.value.code == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for flag in [*flag_names(Sample()).values(), "config"]:
        assert f"--{flag.replace('_', '-')}" in text
    for words in (
        "(default: seven)",
        "id of the world", "centre, in steps", "largest span (None: the context length)", "dropout inside the layer",
        "attention heads of the layer", "Train a sample agent.", "memory-7x7, paper/dtqn",
    ):  # fmt: skip
        assert words in text


FIRST = {
    "q_network": "config env architecture prior total-steps seed run device",
    "unizero": "config env dynamics prior total-steps seed run device",
    "glam": "config env sequence total-steps seed run device threads",
}
HEADINGS = ("environment", "learner", "replay", "evaluation", "output", "compute", "other")


@pytest.mark.parametrize("kind", FIRST)
def test_help_begins_with_what_matters_and_groups_the_rest(kind, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        parse(trainer_class(kind).config_class, ["--help"])
    text = capsys.readouterr().out
    parts = re.split(r"^[╭─ ]*([a-z ]*?) ?options[ ─╮]*$", text, flags=re.MULTILINE)[1:]
    boxes = dict(zip(parts[::2], parts[1::2], strict=True))
    flags = {name: re.findall(r"^[│ ] --([a-z][a-z0-9-]*)", box, re.MULTILINE) for name, box in boxes.items()}
    assert list(boxes)[:3] == ["", "main", "environment"] and set(HEADINGS) <= set(boxes)
    assert flags["main"] == FIRST[kind].split()
    shown = [flag.replace("-", "_") for several in flags.values() for flag in several]
    known = flag_names(defaults(trainer_class(kind).config_class)).values()
    assert sorted(shown) == sorted({*known, "config"}) and max(map(len, text.splitlines())) <= 100
    offered = re.sub(r"[│\s]+", " ", boxes["main"]).partition("shipped preset: ")[2].partition(". ")[0].split(", ")
    assert offered == [name for name in preset_names() if settings.preset_trainer(name) == kind]


def test_a_preset_of_another_trainer_names_its_script():
    for reader, name, script, kind in (
        ("q_network", "glam/catch", "world_models.glam.train", "glam"),
        ("q_network", str(settings.PRESETS / "glam" / "catch.toml"), "world_models.glam.train", "glam"),
        ("unizero", "demo", "dqn_memory.train", "q_network"),
    ):
        said = error_of(parse, trainer_class(reader).config_class, ["--config", name])
        assert said == f"--config {name} is a preset of {script} (in Python: kind={kind!r})"


def rich() -> Filed:
    return Filed(
        clip=None, epsilon=1e-12, buckets=(), env_kwargs={"size": 7, "share": 0.5, "name": 'quo"te', "on": True},
        plugin=("a.b",), layer=Layer(heads=2, prior=Prior("gaussian", 1 / 3, 4.0)),
    )  # fmt: skip


@pytest.mark.parametrize("config", [Filed(), rich(), replace(rich(), clip=3.0)])
def test_round_trip_that_writes_all_but_what_is_none(config):
    again = from_toml(Filed, to_toml(config), "config.toml")
    assert again == config
    assert to_toml(again) == to_toml(config)
    assert ("cap = " in to_toml(config)) == (config != Filed())
    assert read("epsilon = 1\nnamed.a.mu = 2") == Filed(epsilon=1.0, named={"a": Prior(mu=2.0)})
    assert type(read("epsilon = 1").epsilon) is float


NUMBERS = st.floats(allow_nan=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@hypothesis_settings(max_examples=50, deadline=None)
@given(st.builds(Prior, kind=TEXT, mu=NUMBERS, cap=st.none() | NUMBERS))
def test_round_trip_of_any_value(prior):
    assert from_toml(Prior, to_toml(prior), "x") == prior


WRONG = {
    "stepz = 3": "sample.toml: unknown key 'stepz'; did you mean 'steps'?",
    "[layer.prior]\nnu = 3": "sample.toml: unknown key 'layer.prior.nu'; did you mean 'layer.prior.mu'?",
    "steps = true": "sample.toml: steps must be an integer, not true or false (True)",
    "epsilon = false": "sample.toml: epsilon must be a number, not true or false (False)",
    'steps = "3"': "sample.toml: steps must be an integer, not a string ('3')",
    "steps = 3.0": "sample.toml: steps must be an integer, not a number (3.0)",
    "env = 3": "sample.toml: env must be a string, not an integer (3)",
    "double = 1": "sample.toml: double must be true or false, not an integer (1)",
    "layer = 3": "sample.toml: layer must be a table, not an integer (3)",
    "buckets = 3": "sample.toml: buckets must be an array, not an integer (3)",
    'buckets = [1, "2"]': "sample.toml: buckets[1] must be an integer, not a string ('2')",
    "pair = [1]": "sample.toml: pair must have 2 entries, not 1",
    "env_kwargs = {a = []}": "sample.toml: env_kwargs.a must be an integer or a number or a string",
    'norm = "posst"': "sample.toml: norm: unknown value 'posst'; did you mean 'post'?",
    "norm = 1": "sample.toml: norm must be one of 'post', 'identity', not an integer (1)",
    'clip = "some"': "sample.toml: clip must be a number, not a string ('some')",
    "steps = 1979-05-27": "sample.toml: steps must be an integer, not date",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_values_are_named(text):
    assert error_of(read, text).startswith(WRONG[text])


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfseed = 1")
    assert read_text(tmp_path / "a.toml") == "seed = 1"


@pytest.mark.parametrize(
    ("text", "line"),
    [("steps = 1\nenv = = 2\n", 2), ("a = 1\na = 2", 2), ('env = "x', 1), ("\n\n[layer\n", 3)],
)
def test_malformed_toml_names_the_line(text, line):
    assert error_of(read, text).startswith(f"sample.toml:{line}: not valid TOML: ")


def test_names_of_another_version_are_refused():
    refusal = "a.toml: schema 3 is not known here; this version reads 2"
    assert error_of(from_toml, PPOConfig, "schema = 3", "a.toml") == refusal
    assert from_toml(PPOConfig, "schema = 2\nseed = 7", "a.toml").seed == 7


def test_plugins_are_imported_or_refused_in_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "my_block_plugin.py").write_text("REGISTERED = 3\n")
    (tmp_path / "needy_plugin.py").write_text("import not_there_at_all\n")
    (tmp_path / "broken_plugin.py").write_text("raise ValueError('mine')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    load_plugins(["my_block_plugin"])
    assert sys.modules.pop("my_block_plugin").REGISTERED == 3
    for name, words in {
        "no_such_plugin": "--plugin no_such_plugin: no module",
        "needy_plugin": "--plugin needy_plugin: it needs the module 'not_there_at_all'",
        "": "give a module's full name",
    }.items():
        assert words in error_of(load_plugins, [name])
    with pytest.raises(ValueError, match="mine") as caught:  # a defect inside a plugin keeps its traceback
        load_plugins(["broken_plugin"])
    assert not isinstance(caught.value, UserError)


@dataclass(frozen=True)
class Part:
    size: float = 1.0
    most_steps: int = 3
    pair: tuple[float, ...] = (0.5, 0.5)

    def check(self):
        if self.size < 0:
            raise UserError(f"--size {self.size} must not be negative; see --most-steps and --other-thing")
        if self.most_steps < 1:
            raise UserError(f"most_steps {self.most_steps} must be at least 1.")


@dataclass(frozen=True)
class Whole:
    left: Part = field(default_factory=Part)
    right: Part = field(default_factory=Part)
    goal: float | None = None


def test_a_part_is_refused_by_the_flags_of_the_whole():
    said = error_of(check_parts, Whole(right=Part(size=-1.0)), "left", "right")
    assert said == "--right-size -1.0 must not be negative; see --right-most-steps and --other-thing"
    said = error_of(check_parts, Whole(left=Part(most_steps=0)), "left", "right")
    assert said == "--left-most-steps 0 must be at least 1."
    with pytest.raises(UserError, match="--height of it"), flags_of(Whole(), "left", tall="height"):
        raise UserError("tall of it")
    check_parts(Whole(), "left", "right")


def test_every_number_must_be_finite():
    check_numbers(Whole())
    assert error_of(check_numbers, Whole(goal=float("nan"))) == "--goal nan must be a finite number"
    assert error_of(check_numbers, Whole(left=Part(pair=(1.0, float("inf"))))).startswith("--left-pair inf")


@pytest.mark.parametrize(
    ("bounds", "wrong", "words"),
    [
        (Bounds(0), -1, "not be negative"),
        (Bounds(1), 0, "be at least 1"),
        (Bounds(0, 1), 1.5, "lie between 0 and 1"),
        (Bounds(above=0), 0.0, "be above 0"),
        (Bounds(0, below=1), 1.0, "be at least 0 and below 1"),
        (Bounds(above=0, most=1), 0.0, "be above 0 and at most 1"),
    ],
)
def test_numbers_lie_within_their_bounds(bounds, wrong, words):
    types = [("x", Annotated[float, bounds] | None, None), ("y", tuple[Annotated[float, bounds], ...], ())]
    made = make_dataclass("Made", types)
    check_numbers(made())
    assert error_of(check_numbers, made(x=wrong)) == f"--x {wrong} must {words}"
    assert error_of(check_numbers, made(y=(wrong,))) == f"--y {wrong} must {words}"


@pytest.mark.parametrize("given", [["--width", "64"], ["--width=64"], ["--head-width", "64"]])
def test_a_width_beside_a_number_of_parameters_is_one_sentence(given):
    said = error_of(parse, TrainConfig, ["--match", "100k", *given])
    assert "--match 100k" in said and given[0].partition("=")[0] in said
    name = given[0].partition("=")[0][2:].replace("-", "_")
    assert "--match 100k" in error_of(parse, TrainConfig, {"match": "100k", name: 64})


@pytest.mark.parametrize(
    "text",
    [
        'env = "' + "t" * 200_000 + '"\n[',
        "env = 1" + "0" * 200_000,
        '"!"' + '."!"' * 15_000 + " = 1",
        "'\"'" + ".'\"'" * 15_000 + " = 1",
        r'"\""' + r'."\""' * 15_000 + " = 1",
        "total_steps = 0x" + "f" * 20_000,
    ],
    ids=lambda text: text[:8],
)
def test_long_words_keys_and_numbers_are_read_in_no_time(text):
    with within(1):
        assert len(error_of(from_toml, TrainConfig, text, "config.toml")) < 300


# ---- settings that are gone ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Shrunk:
    removed: ClassVar[dict[str, Any]] = {"bag": 0, "novelty": {"weight": 0.0, "steps": ...}}
    steps: int = 1


def test_files_of_older_revisions_stay_readable_where_a_removed_setting_did_nothing():
    text = "steps = 3\nbag = 0\n[novelty]\nweight = 0.0\nsteps = 7\n"
    assert from_toml(Shrunk, text, "old.toml") == Shrunk(3)


@pytest.mark.parametrize("text", ["bag = 2", "[novelty]\nweight = 0.1", "[novelty]\nweight = 'none'"])
def test_a_file_that_asks_for_what_is_gone_says_so(text):
    with pytest.raises(UserError, match=r"old.toml: (bag|novelty\.weight)"):
        from_toml(Shrunk, text, "old.toml")
