"""Peak memory of a run before its work: settings that save memory lower the rows they belong to."""

from pathlib import Path

import pytest
from textrun import start, tiny_text

from guda import steps
from guda.run.recipe import Recipe
from refusals import refused

FIT = {"steps": 2, "batch_forget": 2, "batch_retain": 2}


def test_settings_that_save_memory_lower_the_peak(tmp_path: Path) -> None:
    value = tiny_text(training=None, model={"start": None, "path": tiny_text().model.start}).model_dump(mode="json")
    value["methods"] = {
        "anchors-uniform": FIT,
        "anchors-removed": FIT | {"checkpointing": True},
        "anchors-weighted": FIT | {"store": "lora:1", "checkpointing": True},
    }
    run = start(tmp_path / "run", Recipe.model_validate(value))
    found = steps.plan_memory(run)
    score, whole, again, adapters = found["rows"]
    parameters = 4 * found["parameters"]
    assert score["weights"] == whole["weights"] == 2 * parameters  # two copies of the network
    assert whole["moments"] == again["moments"] == 2 * parameters
    assert again["step"] < whole["step"]
    assert parameters < adapters["weights"] < 1.5 * parameters  # one copy, and adapters
    assert adapters["moments"] < whole["moments"]
    for row in found["rows"]:
        assert row["peak"] == row["weights"] + row["moments"] + row["step"]
        assert row["fits"] == [8, 16, 24, 80]


def test_unknown_names_are_refused() -> None:
    with refused("model-architecture-unknown"):
        steps.plan_memory("sd9")


@pytest.mark.slow
def test_published_architectures_by_name() -> None:
    found = steps.plan_memory("sd15")
    assert found["parameters"] == 859_520_964
    _, score, unlearn, train, lean, *adapters = found["rows"]
    assert score["weights"] == 2 * 4 * found["parameters"]
    assert adapters[-1]["peak"] < lean["peak"] < train["peak"] < unlearn["peak"]
    assert 8 in adapters[-1]["fits"]
    assert 16 not in unlearn["fits"]
