"""Counts of both world models against the papers' numbers, the released classes and closed forms."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from glam_models import PRESETS
from glam_models import model as glam_model
from run_folders import refused
from unizero_models import ACTIONS, VECTOR, config

from dqn_memory.analysis.size import gigaflop
from world_models.glam.config import FORMS
from world_models.glam.model import WorldModel as GlamModel
from world_models.parameters import main, parts, sizes, total
from world_models.unizero.networks import build


def page(folder, *argv):
    """The tables that the script writes, by title, and its page."""
    main([*argv, "--results", str(folder)])
    tables = json.loads((folder / "parameters.json").read_text())["tables"]
    return {table["title"]: table["rows"] for table in tables}, (folder / "parameters.md").read_text()


@pytest.fixture(scope="module")
def unizero(tmp_path_factory):
    return page(tmp_path_factory.mktemp("results"), "unizero")


@pytest.fixture(scope="module")
def glam(tmp_path_factory):
    return page(tmp_path_factory.mktemp("results"), "glam", "--actions", "4")


def test_every_part_and_prior_of_unizero(unizero):
    tables, text = unizero
    totals = tables["Parameters: 20,762,090 + 1,537 A"][0]
    assert totals == {f"A = {n}": 20_762_090 + 1537 * n for n in (3, 6, 8, 9, 18)} and "20,771,312" in text
    rows = {row["prior"] or row["dynamics"]: row for row in tables["Every form of the model"]}
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
    assert [causal[name] for name in ("encode", "root", "expand", "train")] == [
        "140.182", "137.176", "151.486", "630.866"]  # fmt: skip


def test_a_search_step_costs_less_than_seven_tokens_of_everything():
    model = build(config(width=64, heads=4), VECTOR, ACTIONS).eval()
    seven = 7 * 2 * sum(p.numel() for p in model.dynamics.stack.parameters() if p.ndim == 2)
    heads = 2 * sum(p.numel() for p in model.heads.parameters() if p.ndim == 2)
    window, z, a = model.window(1), torch.zeros(1, 64), torch.zeros(1, dtype=torch.int64)
    assert 1e9 * gigaflop(lambda: model.expand(window, z, a)) < seven + heads


# Counted on the released classes; the stem has 256 more for each action.
RELEASED = {
    "encoder": 690_624, "posterior head": 4_195_328, "prior head": 263_168, "stem": 328_192, "GMamba": 438_272,
    "GMamba projection": 66_048, "LMamba": 438_272, "LMamba projection": 65_536, "reward head": 197_631,
    "termination head": 132_353, "decoder": 4_884_931, "variation head": 263_168, "variation projection": 4_195_328,
}  # fmt: skip


def glam_total(config, actions):
    return total(partial(GlamModel, config), actions)


def test_totals_of_glam_by_closed_form():
    paper = PRESETS["paper"]
    for actions in (1, 6, 18):
        assert glam_total(PRESETS["code"], actions) == 16_158_851 + 256 * actions
        # without the second head and its random map, with a LayerNorm behind each of two mixers and with two hidden
        # layers before the first head, each of which has 256 x 256 weights and a LayerNorm
        added = 2 * 512 + 2 * (65_536 + 512)
        assert glam_total(paper, actions) == 16_158_851 - 4_458_496 + added + 256 * actions
        assert glam_total(PRESETS["fast"], actions) == glam_total(paper, actions)
    layer = 437_760 + 2 * 512  # mixer, two LayerNorms
    assert glam_total(replace(paper, global_layers=2, local_layers=3), 6) - glam_total(paper, 6) == 3 * layer


def test_every_part_of_the_released_model(glam):
    tables, text = glam
    rows = {row["part"]: row for row in tables["Preset code: 16,158,851 + 256 A"]}
    assert set(rows) == {*RELEASED, "total"}
    for name, known in RELEASED.items():
        assert rows[name]["parameters"] == known + (256 * 4 if name == "stem" else 0), name
    assert RELEASED["posterior head"] + RELEASED["prior head"] == 4_458_496
    assert "16,159,875" in text


def test_trained_frozen_and_unreached_are_told_apart(glam):
    presets = {title.split()[1].rstrip(":"): rows for title, rows in glam[0].items() if title.startswith("Preset ")}
    for name in PRESETS:
        rows, whole = presets[name], presets[name][-1]
        assert whole["part"] == "total"
        assert whole["parameters"] == sum(row["parameters"] for row in rows[:-1])
        assert whole["frozen"] == (4_195_328 if name == "code" else 0) and whole["unreached"] == 0
        assert whole["buffers"] == 1920
    code = {row["part"]: row for row in presets["code"]}
    assert code["variation projection"]["frozen"] == 4_195_328 and code["variation projection"]["trained"] == 0
    assert code["total"]["trained"] == 11_963_523 + 256 * 4
    dead = sizes(glam_model("code", global_layers=2).float())
    assert dead["total"]["unreached"] == dead["GMamba"]["unreached"] == dead["GMamba"]["trained"] > 0


def test_agent_and_forms_of_glam(glam):
    tables, text = glam
    rows = {row["part"]: row for row in tables["Agent: 3,020,286 + 513 A"]}
    assert rows["actor"]["parameters"] == 919_552 + 513 * 4
    assert rows["critic"]["trained"] == rows["slow critic"]["frozen"] == 1_050_367
    forms = {row["form"]: row for row in tables["Preset `paper` under every sequence form"]}
    assert tuple(forms) == FORMS and all(f"| {name} |" in text for name in FORMS)
    assert all(row["unreached"] == row["frozen"] == 0 for row in forms.values())
    assert forms["glam"]["total"] == forms["glam_no_variation"]["total"]
    assert forms["glam"]["total"] - forms["lmamba"]["total"] == 437_760 + 2 * 512 + 66_048


@pytest.mark.parametrize("name", FORMS)
def test_parts_hold_every_parameter_once(name):
    net = glam_model(sequence=name)
    held = [id(p) for part in parts(net).values() for p in part.parameters()]
    assert len(held) == len(set(held)) and set(held) == {id(p) for p in net.parameters()}


@pytest.mark.long
@pytest.mark.parametrize("model", ["unizero", "glam"])
def test_command_line(model, tmp_path):
    command = [sys.executable, "-m", "world_models.parameters", model, "--no-write", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout), done.stderr
    assert not list(tmp_path.iterdir())


def test_bad_number_of_actions(capsys):
    assert "--actions 0 must be at least 1" in refused(capsys, ["unizero", "--actions", "0", "--no-write"], main)
