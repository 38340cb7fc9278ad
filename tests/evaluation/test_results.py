"""The results schema: what is written comes back, and what does not belong is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from guda.evaluation.ceiling import Comparison, compare
from guda.evaluation.results import (
    Cost,
    DatasetEntry,
    Figure,
    dataset_entry,
    keep_entry,
    machine,
    read_results,
    write_results,
)
from refusals import refused

ESTIMAND = "ELBO over 1 <= t <= 992"


def comparison(seeds: int = 3) -> Comparison:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(40, 6))
    oracle = truth + 0.5 * rng.normal(size=(seeds, 40, 6))
    return compare(oracle, {"retrack": truth, "trak": rng.normal(size=(40, 6))}, reference="trak", n=100)


def test_round_trip(tmp_path: Path) -> None:
    costs = {"logo": Cost(fit_evals=9e5), "retrack": Cost(fit_evals=12_800, fit_seconds=3.5, score_evals=40)}
    entry = dataset_entry(comparison(), [0, 1, 2], ESTIMAND, costs, figures={"anchors_kept": 0.5})
    written = write_results(tmp_path / "r" / "x.json", "guda reproduce digits", {"digits": entry})
    assert read_results(tmp_path / "r" / "x.json") == written
    assert written.datasets["digits"] == entry


def test_one_entry_is_replaced_and_the_others_are_kept(tmp_path: Path) -> None:
    path, old, new = (
        tmp_path / "x.json",
        *(dataset_entry(comparison(), [0, 1, 2], ESTIMAND, {}, figures={"f": f}) for f in (1.0, 2.0)),
    )
    for name in ("b", "other", "a"):
        keep_entry(path, "make", name, old)
    found = keep_entry(path, "make", "b", new, order=("a", "b", "c"))
    assert list(found) == ["a", "b", "other"]
    assert {n: e.figures["f"] for n, e in read_results(path).datasets.items()} == {"a": 1.0, "b": 2.0, "other": 1.0}


def test_the_file_has_the_agreed_names(tmp_path: Path) -> None:
    entry = dataset_entry(comparison(), [4, 5, 6], ESTIMAND, {"retrack": Cost(fit_evals=7, score_seconds=2)})
    write_results(tmp_path / "x.json", "make bench", {"digits": entry})
    raw = json.loads((tmp_path / "x.json").read_text())
    assert list(raw) == ["schema", "command", "machine", "datasets"]
    digits = raw["datasets"]["digits"]
    assert (digits["n_queries"], digits["seeds"], digits["n_groups"]) == (40, [4, 5, 6], 6)
    assert (digits["unit"], digits["sign"]) == ("nats", "positive = the group mattered")
    assert set(digits["ceiling"]["top1"]) == {"mean", "lo", "hi"}
    method = digits["methods"]["retrack"]
    assert set(method["metrics"]["rbo"]) == {"mean", "lo", "hi"}
    assert (method["fit_evals"], method["fit_seconds"], method["score_evals"]) == (7, None, None)
    assert method["score_seconds"] == 2
    assert method["ratio_to_ceiling"]["ndcg3"]["mean"] > 0
    assert method["difference"]["top1"]["lo"] > 0
    assert digits["reference"] == "trak"


def test_the_cost_of_logo_goes_with_the_ceiling() -> None:
    entry = dataset_entry(comparison(), [0, 1, 2], ESTIMAND, {"logo": Cost(fit_seconds=100)})
    assert entry.methods["logo"].metrics == entry.ceiling
    assert entry.methods["logo"].fit_seconds == 100


def test_one_seed_writes_a_null_ceiling_and_says_why() -> None:
    entry = dataset_entry(comparison(seeds=1), [0], ESTIMAND)
    assert entry.ceiling is None
    assert entry.reliability is None
    assert entry.methods["retrack"].ratio_to_ceiling is None
    assert entry.note is not None
    assert "no ceiling" in entry.note


def test_entry_inputs_must_belong_together() -> None:
    with refused("seed-names-mismatch", match="2 seed names for 3"):
        dataset_entry(comparison(), [0, 1], ESTIMAND)
    with refused("cost-method-unknown"):
        dataset_entry(comparison(), [0, 1, 2], ESTIMAND, {"esd": Cost()})


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValidationError, match="above hi"):
        Figure(mean=0.5, lo=0.6, hi=0.4)
    with pytest.raises(ValidationError, match="finite"):
        Figure(mean=float("nan"), lo=0, hi=1)
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        Cost(fit_seconds=-1)
    with pytest.raises(ValidationError, match="n_querys"):
        DatasetEntry.model_validate({"n_queries": 3, "n_querys": 3, "seeds": [0], "ceiling": None, "methods": {}})


def test_a_foreign_file_is_a_one_line_error(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    entry = dataset_entry(comparison(), [0, 1, 2], ESTIMAND)
    write_results(path, "make bench", {"digits": entry})
    raw = json.loads(path.read_text())
    del raw["datasets"]["digits"]["methods"]["trak"]["metrics"]
    path.write_text(json.dumps(raw))
    with refused("evaluation-file-invalid") as e:
        read_results(path)
    assert "\n" not in str(e.value)
    path.write_text("[]")
    with refused("evaluation-file-invalid", match="guda-results/1"):
        read_results(path)
    with refused("file-missing"):
        read_results(tmp_path / "absent.json")


def test_machine_says_where() -> None:
    here = machine()
    assert here.cpu
    assert here.cores >= 1
    assert here.memory_gb is None or here.memory_gb > 0
    assert {"torch", "diffusers", "numpy"} <= set(here.versions)
    assert here.versions["numpy"] == np.__version__
