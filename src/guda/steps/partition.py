"""A clean and a noisy run of one experiment, both evaluated, side by side; written to the noisy run's folder."""

from __future__ import annotations

import numpy as np

from guda.data.sources import moved_per_group
from guda.errors import GudaError, refuse_difference
from guda.evaluation.intervals import bootstrap_mean
from guda.evaluation.metrics import per_query
from guda.evaluation.partition import PartitionFile, partition_markdown, partition_note, partition_table
from guda.evaluation.results import DatasetEntry, Figure, read_entry
from guda.files import write_json, write_text
from guda.methods.terms import load_queries
from guda.run.data import load_data
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.steps.queries import choose_queries
from guda.steps.score import scores_folder, scores_path


def partition(clean: Run, noisy: Run, clean_set: str | None = None, noisy_set: str | None = None) -> PartitionFile:
    """Compare two finished evaluations; RUN/partition.json and partition.md of the noisy run."""
    asked = noisy.recipe.data.partition
    if asked is None or clean.recipe.data.partition is not None:
        wrong = noisy if asked is None else clean
        need = "needs" if asked is None else "must not have"
        raise GudaError(
            "partition-runs-swapped",
            f"{wrong.root}: its recipe {need} data.partition; give the clean run first, then the noisy one",
        )
    _same_experiment(clean, noisy)
    before, after = choose_queries(clean, clean_set), choose_queries(noisy, noisy_set)
    old, new = _entry(clean, before), _entry(noisy, after)
    rows = partition_table(old, new)
    found = PartitionFile(
        fraction=asked.fraction, seed=asked.seed,
        moved_per_group=moved_per_group(load_data(clean).groups, asked.fraction), clean=old, noisy=new, rows=rows,
        oracle=_oracle(clean, before, noisy, after), note=partition_note(rows),
    )  # fmt: skip
    write_json(noisy.path("partition.json"), found.model_dump(mode="json"))
    write_text(noisy.path("partition.md"), partition_markdown(found))
    return found


def _same_experiment(clean: Run, noisy: Run) -> None:
    one, two = clean.recipe.locked(), noisy.recipe.locked()
    for locked in (one, two):
        locked["data"].pop("partition")
    refuse_difference(
        "partition-recipes-differ",
        f"{clean.root} and {noisy.root}",
        one,
        two,
        "only data.partition may differ between a clean and a noisy run",
    )


def _entry(run: Run, name: str) -> DatasetEntry:
    path = scores_folder(run, name) / "evaluation.json"
    if not path.is_file():
        raise GudaError(
            "evaluation-missing",
            f"{name!r} of {run.root} is not evaluated; run: guda evaluate {run.root} --queries {name}",
        )
    return read_entry(path)


def _oracle(clean: Run, before: str, noisy: Run, after: str) -> dict[str, Figure] | None:
    """How far the noisy LOGO ranks the groups of the same pictures as the clean one does."""
    if load_queries(clean, before).digest != load_queries(noisy, after).digest:
        return None
    old, new = (
        Scores.read(scores_path(run, name, run.recipe.evaluation.against))
        for run, name in ((clean, before), (noisy, after))
    )
    if old.groups != new.groups:
        raise GudaError(
            "partition-groups-differ",
            f"{clean.root} and {noisy.root} scored different groups; score the same ones in both",
        )
    config = noisy.recipe.evaluation
    values = per_query(np.asarray(new.score), np.asarray(old.score))
    return {m: bootstrap_mean(v, config.resamples, config.seed) for m, v in values.items()}
