"""What an earlier version wrote is read under the names of this one."""

import pytest
from run_folders import told

from dqn_memory.runs.migration import migrate, migrate_state, new_metric, new_path


def test_tables_settings_and_values_get_their_new_names():
    old = {"seed": 1, "world": {"env": "A", "worlds": 8}, "compute": {"backend": "lanes"}, "learner": {"batch": 4}}
    new = {
        "seed": 1, "environment": {"env": "A", "num_envs": 8}, "compute": {"backend": "simd"},
        "learner": {"batch_size": 4},
    }  # fmt: skip
    assert migrate("q_network", old, "config.toml") == new
    assert old["world"] == {"env": "A", "worlds": 8}  # it is not changed
    assert migrate("another trainer", old, "config.toml") == old


def test_the_schema_of_this_version_is_taken_as_it_is():
    tree = {"world": {"worlds": 8}, "empty": {}, "rows": [{"world": 1}]}
    assert migrate("q_network", {"schema": 2, **tree}, "config.toml") == tree
    del tree["world"]
    assert migrate("q_network", {"schema": 1, **tree}, "x") == tree


@pytest.mark.parametrize("schema", [1, 2])
def test_a_dropped_setting_is_read_where_it_says_what_is_done_now(schema):
    assert migrate("ppo", {"schema": schema, "seeds": 1, "seed": 1}, "x") == {"seed": 1}
    assert migrate("ppo", {"schema": schema, "seeds": 2, "seed": 1}, "x") == {"seeds": 2, "seed": 1}


def test_what_cannot_be_read_is_one_sentence():
    twice = {"world": {"worlds": 1}, "environment": {"num_envs": 2}}
    for tree, message in (
        ({"schema": 3}, "schema 3 is not known here; this version reads 1 and 2"),
        (twice, "environment.num_envs is given twice, under its old name and its new one"),
    ):
        assert told(migrate, "q_network", tree, "new.toml") == f"new.toml: {message}"


def test_settings_metrics_and_trainer_states():
    assert new_path("q_network", ("world", "env")) == ("environment", "env")
    assert new_metric("forgetful/success_rate") == "memory_ablation/success_rate"
    assert new_metric("eval/success_rate") == "eval/success_rate"
    state = migrate_state({"meter": 1, "optimizer": {"a": 2}, "explorer": {"held": 3, "epsilon": 4}})
    assert state == {"stats": 1, "optimizers": [{"a": 2}], "explorer": {"sticky_action": 3, "epsilon": 4}}
