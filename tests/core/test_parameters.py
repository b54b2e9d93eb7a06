"""The parameter report against the paper's Table 3, closed forms, and its own command line."""

import csv
import json

import pytest
from run_folders import error_of, refused

from dqn_memory import size
from dqn_memory.blocks import MEMORY, PRIORS, PriorConfig
from dqn_memory.network import ARCHITECTURES, NetworkConfig, ObservationSpec
from dqn_memory.parameters import main, make_row, page_tables, read_table3
from dqn_memory.size import WIDTHS, Unmatched, count, environment_sizes, on_meta
from envs.registry import FROM_FILES, WORLDS

EQUATIONS = ("--form", "paper_equations")
CAR, GRID, CARDS = "POMDP/CarFlag-v0", "Gridverse/Memory-5x5-v0", "POMDP/MemoryCards-v0"
HALLWAY, HEAVEN, KEYDOOR = "POMDP/Hallway-v0", "POMDP/HeavenHell-v0", "Gridverse/Keydoor-5x5-v0"


def published(world: str, architecture: str, **changes) -> int | None:
    return make_row(world, NetworkConfig(architecture=architecture, **changes)).published


def test_table3_has_64_cells_and_ours_are_the_same():
    printed = read_table3()
    assert len(printed) == 64
    assert {cell: published(*cell) for cell in printed} == printed


PREDICTED = {
    "dbgfqn": {HALLWAY: 84997, HEAVEN: 84884, GRID: 317510, CAR: 84363, CARDS: 322010, KEYDOOR: 317704},
    "dtqn4": {HALLWAY: 113541, HEAVEN: 113428, GRID: 431942, CAR: 112907, CARDS: 436442, KEYDOOR: 432136},
    "drqn": {HALLWAY: 38525, HEAVEN: 38412, GRID: 155838, CAR: 37891, CARDS: 160338},
}


@pytest.mark.parametrize("architecture", PREDICTED)
def test_columns_that_the_paper_does_not_print(architecture):
    assert {world: published(world, architecture) for world in PREDICTED[architecture]} == PREDICTED[architecture]


@pytest.mark.parametrize("world", [CAR, GRID, KEYDOOR])
@pytest.mark.parametrize("architecture", [n for n, row in ARCHITECTURES.items() if n[0] == "d" and row.attention])
def test_parts_follow_the_closed_form(world, architecture):
    """That of memories is in test_equations.py."""
    sizes = environment_sizes(world)
    width, spec, actions, context = sizes.width, sizes.spec, sizes.num_actions, 20
    row = ARCHITECTURES[architecture]
    memory = 0 if row.memory == "none" else 2 * width + count(MEMORY[row.memory](width)).trainable  # and its norm
    layer = 4 * width**2 + 6 * width + memory
    inputs = 8 * spec.shape[0] if spec.kind == "discrete" else spec.shape[0]
    config = NetworkConfig(architecture=architecture, width=width, context=context)
    network = on_meta(config, spec, actions)
    parts = {
        "embedding": [network.observation_embedding], "positions": [network.positions], "encoder": [network.layers],
        "norm": [network.norm], "head": [network.head],
    }  # fmt: skip
    assert {name: sum(count(part).trainable for part in several) for name, several in parts.items()} == {
        "embedding": 8 * spec.vocabulary + inputs * width + width,
        "positions": context * width,
        "encoder": 2 * layer,
        "norm": 2 * width,
        "head": width**2 + width + width * actions + actions,
    }
    assert count(network).trainable == sum(count(part).trainable for several in parts.values() for part in several)


def test_counts_keep_frozen_parameters_and_buffers_apart():
    config = NetworkConfig(architecture="attn", width=16, heads=2, context=5)
    network = on_meta(config, environment_sizes(CAR).spec, 3)
    before = count(network)
    network.head.requires_grad_(False)
    after = count(network)
    assert (after.trainable, after.frozen) == (before.trainable - 51, 51)
    assert before.buffers == after.buffers == 5 * 16 + 5  # sinusoidal positions, distances of the prior


def test_published_counts_only_published_forms():
    assert published(CAR, "dtqn4", context=20) == 107907 - 30 * 64 + 2 * 20**2
    for changes in ({"gate": "gru"}, {"norm_order": "identity"}, {"form": "paper_equations"}, {"head_width": 80}):
        assert published(CAR, "dtqn4", **changes) is None
    assert published(CAR, "drqn", prior=PriorConfig(kind="gaussian")) == 37891  # it has no attention to shape
    assert published(CAR, "gtrxl") is None


@pytest.mark.parametrize("kind", PRIORS)
def test_learned_priors_are_trainable_and_not_published(kind):
    row = make_row(CAR, NetworkConfig(architecture="dtqn4", prior=PriorConfig(kind=kind)))
    learned = ("gaussian" in kind) * 2 + ("adaptive" in kind)  # mu, sigma and span, one a head
    assert row.trainable == 107907 + 2 * 8 * learned
    assert (row.published is None) == (kind != "causal")


def test_budgets():
    budgets = {"100k": 100_000, "1.5M": 1_500_000, "120000": 120_000, "2m": 2e6}
    assert {text: size.parse_budget(text) for text in budgets} == budgets
    for text in ("", "k", "-5", "0", "1e5", "100 000", "12x"):
        assert "100k" in error_of(size.parse_budget, text)


def trainable(world: str, config: NetworkConfig) -> int:
    sizes = environment_sizes(world)
    return count(on_meta(config, sizes.spec, sizes.num_actions)).trainable


def matched(world: str, budget: int | str, **changes) -> tuple[NetworkConfig, int]:
    sizes = environment_sizes(world)
    config = size.match(budget, NetworkConfig(**changes), sizes.spec, sizes.num_actions)
    return config, trainable(world, config)


@pytest.mark.parametrize("world", [CAR, pytest.param(GRID, marks=pytest.mark.long)])
@pytest.mark.parametrize("architecture", [n for n, row in ARCHITECTURES.items() if row.head == "mlp"])
def test_match_is_the_widest_network_within_two_percent(world, architecture):
    config, found = matched(world, 100_000, architecture=architecture)
    assert 98_000 <= found <= 100_000
    step = config.heads * (2 if ARCHITECTURES[architecture].streamed else 1)  # rotary heads have an even width
    assert config.width % step == 0
    narrow, wide = (
        trainable(world, NetworkConfig(architecture=architecture, width=width))
        for width in (config.width, config.width + step)
    )
    assert wide > 100_000 >= narrow


@pytest.mark.parametrize(("architecture", "multiple"), [("dbgfqn", 2), ("slstm", 4)])  # four heads of its own
def test_match_with_one_head_keeps_to_widths_that_can_be(architecture, multiple):
    config, found = matched(CAR, "120k", architecture=architecture, heads=1)
    assert config.width % multiple == 0 and 117_600 <= found <= 120_000


def test_match_of_a_linear_head():
    """Where the row has hidden units it takes them, else the width alone meets the budget, or nothing does."""
    config, found = matched(CAR, 100_000, architecture="attn")
    assert (config.width, config.head_width, found) == (80, 259, 99_919)
    linear = {"architecture": "attn", "form": "paper_equations"}
    config, found = matched(GRID, 100_000, **linear)
    assert 98_000 <= found <= 100_000 and config.head_width is None
    with pytest.raises(Unmatched, match="linear Q head"):
        matched(CAR, 100_000, **linear)
    with pytest.raises(Unmatched, match="smallest dtqn4"):
        matched(CAR, 500, architecture="dtqn4")


def test_every_environment_has_sizes_and_most_a_width_of_the_paper():
    ours = {name for name in WORLDS if name.startswith(("Gridverse/", "POMDP/"))}
    assert set(WIDTHS) == ours - set(FROM_FILES) and len(WIDTHS) >= 7
    assert environment_sizes(CAR).spec == ObservationSpec("continuous", (3,))
    assert environment_sizes(f"envs:{CAR}").width == 64
    assert environment_sizes("CartPole-v1") == size.EnvironmentSizes(ObservationSpec("continuous", (4,)), 2, 64)


def test_a_wrong_cell_is_marked(monkeypatch):
    monkeypatch.setattr("dqn_memory.parameters.read_table3", lambda: {(CAR, "dbgfqn"): 1})
    assert "1 / 84,363 ✗" in next(page_tables([])).markdown()


@pytest.fixture
def printed(here, capsys):
    """The command line in an empty folder: gives what it prints."""

    def run(*arguments: str):
        main([*arguments])
        return capsys.readouterr()

    return run


def test_the_script_prints_and_writes_both_files(printed, tmp_path):
    asked = ("--env", CAR, "--env", GRID, "--architecture", "dbgfqn", "--architecture", "gtrxl")
    rows = json.loads(printed("--format", "json", *asked, "--write", "results").out)
    assert list(rows[0])[:6] == ["world", "architecture", "published", "trainable", "frozen", "buffers"]
    assert list(rows[0].values())[:5] == [CAR, "dbgfqn", 84363, 79363, 0]
    assert [row["published"] for row in rows] == [84363, None, 317510, None]
    page, text = ((tmp_path / "results" / f"parameters.{kind}").read_text() for kind in ("md", "csv"))
    for content in (text, page):
        assert f"command: python -m dqn_memory.parameters --format json --env {CAR}" in content
        assert "revision: " in content and "cpu: " not in content and "left out" not in content
    assert text.endswith(printed("--format", "csv", *asked).out)
    lines = list(csv.DictReader(line for line in text.splitlines() if line[0] != "#"))
    assert [int(line["trainable"]) for line in lines] == [row["trainable"] for row in rows]
    assert "64 of 64 printed cells match" in page and "✗" not in page
    assert "– / 84,363" in page and "79,363 + 5,000" in page and "- **published**: " in page
    table = printed(*asked).out
    assert "84,363" in table


def test_default_report_has_every_world_and_architecture(printed, tmp_path):
    rows = json.loads(printed("--format", "json").out)
    assert [(row["world"], row["architecture"]) for row in rows] == [
        (env, name) for env in WIDTHS for name in ARCHITECTURES
    ]
    assert not list(tmp_path.iterdir())


def test_matched_rows_leave_out_what_cannot_match(printed, tmp_path):
    matched = ("--architecture", "dtqn4", "--architecture", "dqn", "--match", "1000", "--write", "results")
    done = printed("--format", "csv", "--env", CAR, *matched)
    (row,) = csv.DictReader(done.out.splitlines())
    assert row["architecture"] == "dqn" and row["published"] == "" and 980 <= int(row["trainable"]) <= 1000
    assert "left out, POMDP/CarFlag-v0: --match 1000" in done.err
    assert "smallest dtqn4" in (tmp_path / "results/parameters.md").read_text()


@pytest.mark.parametrize(("arguments", "message"), [
    (["--env", "POMDP/CarFlg-v0"], "did you mean 'POMDP/CarFlag-v0'"),
    (["--architecture", "dbgfq"], "did you mean 'dbgfqn'"),
    (["--prior", "gausian"], "did you mean 'gaussian'"),
    (["--env", "POMDP/File-v0"], "POMDP/File-v0 has no fixed size"),
    (["--env", "Pixel/BlinkingCatch-v0"], "shows images"),
    (["--heads", "7"], "--heads 7 does not divide"),
    (["--heads", "0", "--match", "100k"], "--heads 0 must be at least 1"),
    (["--match", "many"], "100k"),
    (["--architecture", "attn", "--env", CAR, "--match", "100k", *EQUATIONS], "linear Q head"),
    (["--env", CAR, "--architecture", "dqn", "--write", "file/below"], "cannot write to file/below"),
])  # fmt: skip
def test_user_errors_are_one_line_and_exit_2(arguments, message, here, capsys):
    (here / "file").touch()
    assert message in refused(capsys, arguments, main)
    assert [path.name for path in here.iterdir()] == ["file"]
