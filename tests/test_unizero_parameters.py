"""Counts against the paper's Table 3, closed forms and torch's own profiler."""

import json
import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from unizero_models import ACTIONS, IMAGE, VECTOR, config

from world_models.unizero.config import ModelConfig
from world_models.unizero.flops import FORMS, Counter, count, plain_forward
from world_models.unizero.networks import build
from world_models.unizero.parameters import main
from world_models.unizero.table3 import ATARI, mflop, size

EXPECTED = {  # by the profiler's rule; the three released forms as measured on the released classes
    ("causal", "S"): 454_610_944,
    ("adaptive_gate", "S * tri"): 454_615_040,
    ("gaussian_gate", "S * exp(-e)"): 454_615_056,
    ("gaussian_adaptive_gate", "S * (tri * exp(-e))"): 454_619_152,
}


def stack(**changes):
    return build(ModelConfig(**changes), VECTOR, ACTIONS).eval().dynamics.stack


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    main(["--results", str(folder)])
    return json.loads((folder / "parameters.json").read_text()), (folder / "parameters.md").read_text()


@pytest.mark.parametrize("num_actions", [3, 6, 18])
def test_total(num_actions):
    with torch.device("meta"):
        model = build(ModelConfig(), ATARI, num_actions)
    assert sum(p.numel() for p in model.parameters()) == 20_762_090 + 1537 * num_actions


def test_every_part_and_prior(numbers):
    report, _ = numbers
    assert report["total"] == 20_771_312 and report["total_without_actions"] == 20_762_090
    rows = {row["prior"] or row["dynamics"]: row for row in report["models"]}
    causal = rows["causal"]
    assert (causal["encoder"], causal["stack"], causal["positions"]) == (3_461_152, 14_177_280, 15_360)
    assert (causal["actions"], causal["heads"]) == (768 * 6, 3_108_298 + 769 * 6)
    for row in rows.values():
        assert row["total"] == sum(row[part] for part in ("encoder", "actions", "positions", "stack", "heads"))
    extra = {"local": 0, "adaptive": 16, "adaptive_hard": 16, "gaussian": 32, "gaussian_adaptive": 48,
             "gaussian_gate": 32, "adaptive_gate": 16, "gaussian_adaptive_gate": 48}  # fmt: skip
    for prior, added in extra.items():
        assert rows[prior]["total"] == 20_771_312 + added == causal["total"] + rows[prior]["learned_prior"]
    assert {"recurrent", "gru"} < set(rows)


def test_table3_is_reproduced_or_refuted(numbers):
    report, page = numbers
    verdicts = {row["row"]: row["verdict"] for row in report["table3"]}
    assert verdicts["Baseline"] == "reproduced"
    assert verdicts["Adaptive"] == verdicts["Gaussian Adaptive"] == "reproduced by the released form"
    assert verdicts["Gaussian"].startswith("refuted for the released form (454.615); only")
    assert all(words in page for words in verdicts.values())
    assert all(f"{value}" in page for value in ("20,771,312", "20,762,090", "454.610944", "454.619152"))
    counted = {(row["prior"], row["formula"]): row["flop"] for row in report["spellings"]}
    assert {key: counted[key] for key in EXPECTED} == EXPECTED
    for row in report["table3"]:
        assert round(report["total"] / 1e6, 2) == row["total"] and round(row["transformer_counted"] / 1e6, 2) == 14.18


def test_the_rule_is_that_of_torchs_profiler():
    layers, x = stack(width=32, heads=4), torch.randn(1, 12, 32)
    for form in FORMS:
        with torch.no_grad(), torch.profiler.profile(with_flops=True) as profile:
            plain_forward(layers, x, form)
        assert count(layers, form, 12).published == sum(event.flops for event in profile.key_averages()), form.formula


def test_the_published_number_by_its_formula():
    tokens, width, layers, heads = 16, 768, 2, 8
    linear = 2 * tokens * layers * 12 * width**2
    pairs = layers * 2 * 2 * tokens**2 * width
    counted = linear + pairs + 2 * layers * tokens * width + layers * heads * tokens**2
    assert counted == 454_610_944 == EXPECTED[("causal", "S")]


def test_the_counted_pass_is_the_models_own():
    layers, x = stack(width=32, heads=4), torch.randn(2, 12, 32)
    for row in x[:, None]:
        torch.testing.assert_close(plain_forward(layers, row, FORMS[0]), layers(row), rtol=1e-4, atol=1e-5)


def test_all_operations_hold_the_products_and_little_more():
    model = build(config(), IMAGE, ACTIONS).eval()
    frames = torch.zeros(2, 64, 64, 3, dtype=torch.uint8)
    window, z, a = model.window(2), torch.zeros(2, 16), torch.zeros(2, dtype=torch.int64)
    for work in (lambda: model.encode(frames), lambda: model.root(window, z), lambda: model.expand(window, z, a)):
        with torch.no_grad(), FlopCounterMode(display=False) as products:
            work()
        assert products.get_total_flops() / 1e6 < mflop(work) < 2.5 * products.get_total_flops() / 1e6


def test_elementwise_costs_by_hand():
    x = torch.ones(3, 4)
    with Counter() as counter:
        x.softmax(-1)
    assert (counter.published, counter.total) == (0, 48)
    with Counter() as counter:
        (x + x) * x - x
    assert (counter.published, counter.total) == (24, 36)
    with torch.no_grad(), Counter() as counter:
        torch.nn.functional.linear(x, torch.ones(5, 4), torch.ones(5))
    assert (counter.published, counter.total) == (2 * 3 * 4 * 5, 2 * 3 * 4 * 5 + 15)


def test_a_search_step_costs_less_than_seven_tokens_of_everything():
    model = build(config(width=64, heads=4), VECTOR, ACTIONS).eval()
    seven = 7 * 2 * sum(p.numel() for p in model.dynamics.stack.parameters() if p.ndim == 2)
    heads = 2 * sum(p.numel() for p in model.heads.parameters() if p.ndim == 2)
    assert size(model).expand < (seven + heads) / 1e6


@pytest.mark.long
@pytest.mark.parametrize("form", ["json", "md"])
def test_command_line(form, tmp_path):
    command = [sys.executable, "-m", "world_models.unizero.parameters", "--format", form, "--no-write"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if form == "json":
        assert json.loads(done.stdout)["total"] == 20_771_312
    else:
        assert done.stdout.startswith("# ") and "20,771,312" in done.stdout
    assert not list(tmp_path.iterdir())


def test_bad_number_of_actions(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--actions", "0", "--no-write"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: --actions 0 must be at least 1\n"
