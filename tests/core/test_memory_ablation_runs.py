"""World models, too, judge their final agent without its memory where they are asked to."""

import glam_runs
import pytest
import unizero_models
from run_folders import metrics

from world_models.glam import train as glam
from world_models.unizero import train as unizero


@pytest.mark.long
@pytest.mark.parametrize(
    ("main", "flags", "steps"), [(unizero.main, unizero_models.flags, 120), (glam.main, glam_runs.flags, 40)]
)
def test_the_final_agent_is_judged_without_its_memory_where_asked(tmp_path, main, flags, steps):
    asked, unasked = tmp_path / "asked", tmp_path / "unasked"
    main([*flags(asked, steps=steps), "--memory-ablation"])
    main(flags(unasked, steps=steps))
    last, other = (metrics(run)[-1] for run in (asked, unasked))
    assert last["memory_ablation/episodes"] == last["final/episodes"] and "memory_ablation/episodes" not in other
    assert all(last[name] == other[name] for name in other if name.startswith("final/"))
