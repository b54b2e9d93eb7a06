"""Reports say what forgetting costs, where runs were judged without their memory."""

from reported import STEPS, make_study

from dqn_memory.study.report import main
from dqn_memory.study.report_data import collect
from dqn_memory.study.report_forgetting import forgetting_section
from dqn_memory.study.report_source import open_source

MEMORY = "Gridverse/Memory-5x5-v0"


def test_what_forgetting_costs_stands_beside_the_score(tmp_path):
    def judged(run, step):
        without = {"memory_ablation/success_rate": 0.25, "memory_ablation/episodic_return": -1.0}
        return without if step == STEPS and run.axes["architecture"] == "dgfqn" else {}

    study = make_study(tmp_path / "study", [MEMORY], '["dtqn4", "dgfqn"]', [1, 2], lambda run, step: 0.75, judged)
    section = forgetting_section(collect(open_source(study.folder)))
    (row,) = section.parts[1].rows  # dtqn4's runs were not judged so
    assert row[:3] == (MEMORY, "dgfqn", "2")
    assert [cell.split()[0] for cell in row[3:]] == ["0.750", "0.250", "0.500"]
    main([str(study.folder), "--no-attention"])
    assert "## Without the memory" in (study.folder / "report/report.md").read_text()


def test_runs_that_were_not_judged_without_their_memory_have_no_such_section(tmp_path):
    study = make_study(tmp_path / "study", [MEMORY], '["dtqn4"]', [1])
    assert forgetting_section(collect(open_source(study.folder))) is None
