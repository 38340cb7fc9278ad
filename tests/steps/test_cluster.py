"""A run planned for a cluster: the same work as `guda plan` counts, scaled, priced and scheduled."""

import json

import pytest
from tinyrun import copy_run, digits_folder, finished_root, tiny
from typer.testing import CliRunner

from guda import steps
from guda.cli.main import app
from guda.engine.simulate import Cluster, simulate
from guda.errors import GudaError
from guda.run.run import Run
from guda.steps.cluster import ClusterConfig, workload


@pytest.fixture(scope="module")
def run():
    return Run.open(finished_root())  # only looked at


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """The same recipe, nothing done, so nothing recorded."""
    return steps.init(tmp_path_factory.mktemp("fresh") / "run", tiny(digits_folder()))


def parts(run, methods, n=12, **settings):
    return {p.what: p for p in workload(run, methods, ClusterConfig(**settings), n).parts}


@pytest.mark.parametrize("method", ["retrack", "logo"])
def test_the_work_is_what_the_plan_counts(fresh, method):
    planned = {row["what"]: row for row in steps.plan(fresh, [method], 12)["rows"]}
    found = parts(fresh, [method])
    others = found[f"train for {method}"].evals if f"train for {method}" in found else 0
    assert found["train the full model"].evals == planned["train the full model"]["evals"]
    assert found[f"fit {method}"].evals + others == planned[f"fit {method}"]["evals"]
    assert found[f"score {method}"].evals == planned[f"score 12 queries by {method}"]["evals"]
    assert found[f"score {method}"].disk == planned[f"score 12 queries by {method}"]["disk"]
    assert found[f"score {method}"].tasks == 3  # shards of 5


def test_a_finished_run_is_planned_from_nothing(run, fresh):
    assert [(p.what, p.evals) for p in parts(run, ["retrack"]).values()] == [
        (p.what, p.evals) for p in parts(fresh, ["retrack"]).values()
    ]


def test_more_groups_and_queries_by_hand(fresh):
    few, many = parts(fresh, ["retrack"]), parts(fresh, ["retrack"], n=1200, groups=300, shard=100)
    assert many["fit retrack"].evals == 100 * few["fit retrack"].evals  # of 3
    assert many["fit retrack"].disk == 100 * few["fit retrack"].disk
    assert many["score retrack"].evals == few["score retrack"].evals / (4 * 12) * (301 * 1200)
    assert many["score retrack"].disk == few["score retrack"].disk // (4 * 12) * (301 * 1200)
    assert (many["fit retrack"].tasks, many["score retrack"].tasks) == (300, 12)
    assert many["train the full model"].evals == few["train the full model"].evals


def test_a_rule_scores_any_number_of_groups_with_the_same_networks(fresh):
    few, many = parts(fresh, ["posterior"]), parts(fresh, ["posterior"], groups=1000)
    assert many["score posterior"].evals == few["score posterior"].evals
    assert "fit posterior" not in many  # no network is trained


def test_what_two_methods_share_is_counted_once(tmp_path):
    hybrid = {"shift": {"steps": 5}, "hybrid": {"tuned": "shift", "rule": "posterior"}, "posterior": {}}
    run = steps.init(tmp_path / "run", tiny(digits_folder(), methods=hybrid))
    assert "fit hybrid" not in parts(run, ["shift", "hybrid"])
    assert parts(run, ["hybrid"])["fit hybrid"].tasks == 3


def test_recorded_times_are_used(run):
    """Seconds of all tasks as the run recorded them, when nothing is scaled."""
    load = workload(run, ["retrack"], ClusterConfig(), 12)
    found = {p.what: p for p in load.parts}
    assert all(load.measured.values())
    assert found["fit retrack"].seconds == pytest.approx(run.seconds("fit/retrack"))
    told = workload(run, ["retrack"], ClusterConfig(per_second=100.0), 12)
    assert all(p.seconds == pytest.approx(p.evals / 100) for p in told.parts)


def test_one_worker_does_it_all_one_after_the_other(run):
    config = ClusterConfig(workers=(1, 4), per_second=10.0, overhead=1.0, start=7.0, submit=0.5, price=3.6)
    value = steps.plan_cluster(run, ["retrack"], config, 12)
    one, four = value["schedules"]
    tasks = 1 + 3 + 3
    assert one["makespan"] == pytest.approx(7 + value["evals"] / 10 + tasks * 1.5)
    assert one["cost"] == pytest.approx(one["makespan"] * 3.6 / 3600)
    assert four["makespan"] < one["makespan"]
    assert four["paid_hours"] == pytest.approx(4 * four["makespan"] / 3600)
    assert four["bottleneck"] == "training"  # a tiny run is mostly its training


def test_training_then_a_wave_of_groups_then_a_wave_of_shards(run):
    load = workload(run, ["retrack"], ClusterConfig(per_second=1.0, groups=40, shard=1), 40)
    at = {p.what: p for p in load.parts}
    each = [at[f"{stage} retrack"].seconds / 40 for stage in ("fit", "score")]
    train = at["train the full model"].seconds
    assert simulate(load.works, Cluster(10)).makespan == pytest.approx(train + 4 * each[0] + 4 * each[1])
    assert simulate(load.works, Cluster(1000)).makespan == pytest.approx(train + each[0] + each[1])


def test_what_cannot_be_planned(run):
    with pytest.raises(GudaError, match="not similarity-pixel"):
        workload(run, ["retrack", "similarity-pixel"], ClusterConfig(), 12)
    with pytest.raises(GudaError, match="give a larger shard"):
        workload(run, ["retrack"], ClusterConfig(shard=1), 400_000)


def test_from_the_command_line(run, tmp_path):
    root, figure = str(run.root), tmp_path / "schedule.png"
    call = ["plan", root, "-m", "retrack", "--cluster", "1,10", "--set", "groups=50", "--set", "price=2"]
    told = CliRunner().invoke(app, [*call, "--figure", str(figure)])
    assert told.exit_code == 0, told.output
    assert "50 groups, 12 queries" in told.output
    assert figure.read_bytes()[:4] == b"\x89PNG"
    value = json.loads(CliRunner().invoke(app, [*call, "--json"]).stdout)
    assert [s["workers"] for s in value["schedules"]] == [1, 10]
    for wrong, message in [
        (["--set", "price=2"], "need --cluster"),
        (["--cluster", "0"], "greater than 0"),
        (["--cluster", "10", "--set", "gpus=3"], "settings: workers"),
        (["--cluster", "ten"], "valid integer"),
    ]:
        failed = CliRunner().invoke(app, ["plan", root, "-m", "retrack", *wrong])
        assert isinstance(failed.exception, GudaError), wrong
        assert message in str(failed.exception)


def test_nothing_is_written(tmp_path):
    from tinyrun import tree

    run = copy_run(tmp_path / "run")
    before = tree(run.root)
    steps.plan_cluster(run, ["retrack"], ClusterConfig(), 12)
    assert tree(run.root) == before
