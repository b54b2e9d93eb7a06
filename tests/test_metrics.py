"""What becomes of a run's scalars when they are kept."""

import json
import math

from dqn_memory.runs.metrics import metrics_line, shortened


def test_records_shorten_training_lines_alone() -> None:
    evaluation = metrics_line(10, {"eval/success_rate": 1 / 3, "time/elapsed": 1 / 7})
    scalars = {"losses/td_loss": 0.13601534707205637, "charts/SPS": 33836.32814376696, "n": 3, "x": math.inf}
    training = metrics_line(20, scalars)
    short = shortened(evaluation + training + b'{"step": 2')  # a line that a kill cut short is left out
    first, second = short.splitlines()
    assert json.loads(first) == json.loads(evaluation) and b" " not in short
    assert json.loads(second) == {"step": 20, "losses/td_loss": 0.13601535, "charts/SPS": 33836.328, "n": 3, "x": None}
    assert shortened(short) == short
