"""Counts against the released classes, closed forms and the parts of the model themselves."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from glam_models import model

from world_models.glam.config import FORMS, PRESETS
from world_models.glam.parameters import main
from world_models.glam.sizes import RELEASED, parts, sizes, total


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    main(["--results", str(folder), "--actions", "4"])
    return json.loads((folder / "parameters.json").read_text()), (folder / "parameters.md").read_text()


@pytest.mark.parametrize("actions", [1, 4, 6, 9, 18])
def test_totals(actions):
    assert total(PRESETS["code"], actions) == 16_158_851 + 256 * actions
    # without the second head and its random map, with a LayerNorm behind each of two mixers and with two hidden layers
    # before the first head, each of which has 256 x 256 weights and a LayerNorm
    assert total(PRESETS["paper"], actions) == 16_158_851 - 4_458_496 + 2 * 512 + 2 * (65_536 + 512) + 256 * actions
    linear = replace(PRESETS["paper"], prior_head="linear")
    assert total(PRESETS["paper"], actions) - total(linear, actions) == 132_096
    assert total(PRESETS["fast"], actions) == total(PRESETS["paper"], actions)


def test_depth_and_width_by_closed_form():
    layer = 437_760 + 2 * 512  # mixer, two LayerNorms
    deeper = replace(PRESETS["paper"], global_layers=2, local_layers=3)
    assert total(deeper, 6) - total(PRESETS["paper"], 6) == 3 * layer


def test_every_part_of_the_released_model(numbers):
    report, page = numbers
    rows = {row["part"]: row for row in report["presets"]["code"]}
    assert set(rows) == {*RELEASED, "total"}
    for name, known in RELEASED.items():
        assert rows[name]["parameters"] == known + (256 * 4 if name == "stem" else 0), name
    assert RELEASED["posterior head"] + RELEASED["prior head"] == 4_458_496
    assert all(row["equal"] for row in report["released"])
    assert report["formulas"]["code"] == {"base": 16_158_851, "per_action": 256}
    assert "16,158,851 + 256 A" in page and "16,159,875" in page


def test_trained_frozen_and_unreached_are_told_apart(numbers):
    report, _ = numbers
    for name, rows in report["presets"].items():
        whole = rows[-1]
        assert whole["part"] == "total"
        assert whole["parameters"] == sum(row["parameters"] for row in rows[:-1])
        assert whole["frozen"] == (4_195_328 if name == "code" else 0) and whole["unreached"] == 0
        assert whole["buffers"] == 1920
    code = {row["part"]: row for row in report["presets"]["code"]}
    assert code["variation projection"]["frozen"] == 4_195_328 and code["variation projection"]["trained"] == 0
    assert code["total"]["trained"] == 11_963_523 + 256 * 4


def test_dead_layers_are_reported():
    rows = {row.part: row for row in sizes(model("code", global_layers=2).float())}
    assert rows["GMamba"].unreached == rows["GMamba"].trained > 0
    assert rows["total"].unreached == rows["GMamba"].unreached


def test_agent(numbers):
    report, _ = numbers
    rows = {row["part"]: row for row in report["agent"]}
    assert rows["actor"]["parameters"] == 919_552 + 513 * 4
    assert rows["critic"]["trained"] == rows["slow critic"]["frozen"] == 1_050_367
    assert report["agent_formula"] == {"base": 3_020_286, "per_action": 513}


def test_forms(numbers):
    report, page = numbers
    assert tuple(report["forms"]) == FORMS and all(f"| {name} |" in page for name in FORMS)
    totals = {name: rows[-1] for name, rows in report["forms"].items()}
    assert all(row["unreached"] == row["frozen"] == 0 for row in totals.values())
    assert totals["glam"] == totals["glam_no_variation"]
    assert totals["glam"]["parameters"] - totals["lmamba"]["parameters"] == 437_760 + 2 * 512 + 66_048


@pytest.mark.parametrize("name", FORMS)
def test_parts_hold_every_parameter_once(name):
    net = model(sequence=name)
    held = [id(p) for part in parts(net).values() for p in part.parameters()]
    assert len(held) == len(set(held)) and set(held) == {id(p) for p in net.parameters()}


@pytest.mark.long
def test_command_line(tmp_path):
    command = [sys.executable, "-m", "world_models.glam.parameters", "--format", "json", "--no-write"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["formulas"]["code"]["base"] == 16_158_851
    assert not list(tmp_path.iterdir())


def test_bad_number_of_actions(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--actions", "0", "--no-write"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: --actions 0 must be at least 1\n"
