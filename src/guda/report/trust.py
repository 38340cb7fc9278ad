"""How far to trust the answer: agreement with retraining (the oracle), in words and as marks of a small figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from guda.errors import GudaError
from guda.evaluation.ceiling import CEILING
from guda.evaluation.intervals import Share
from guda.evaluation.results import DatasetEntry, Figure, read_entry
from guda.files import read_json
from guda.run.run import Run
from guda.table import percent, probability

METRIC = "top1"

FEW = 20  # pictures from which no claim can be confirmed


# What the table's columns say, for a reader who has not met them.
GLOSSARY = (
    ("Top-1", "share of pictures for which the method and the oracle rank the same group first"),
    ("MRR", "1 / (rank the method gives to the oracle's first group), averaged"),
    ("NDCG@3", "how well the first three groups match the oracle's order, early ranks counting most"),
    ("Top-3", "share of the oracle's first three groups that are among the method's first three"),
    ("RBO", "overlap of the two rankings from the top down (rank-biased overlap, p = 0.9)"),
    ("Spearman", "correlation of the two whole rankings; 0 is chance, 1 is the same order"),
    ("evals", "network evaluations, the unit of cost: forward of one image = 1, forward and backward = 3"),
)


@dataclass(frozen=True)
class Mark:
    """One method's Top-1 in the figure; all numbers are shares of 1."""

    name: str
    figure: Figure

    @property
    def text(self) -> str:
        return share(self.figure)


def share(figure: Figure) -> str:
    return f"{percent(figure.mean)} [{100 * figure.lo:.0f}, {100 * figure.hi:.0f}]"


def read_evaluation(run: Run, queries: str, n_queries: int, n_groups: int) -> DatasetEntry | None:
    """The stored evaluation of this query set; None if there is none."""
    from guda.steps import scores_folder

    path = scores_folder(run, queries) / "evaluation.json"
    if not path.is_file():
        return None
    try:
        entry = DatasetEntry.model_validate(read_json(path))
    except ValidationError as e:
        raise GudaError(
            "evaluation-damaged", f"{path} is damaged ({e.errors()[0]['msg']}); run: guda evaluate {run.root}"
        ) from None
    if entry.n_queries != n_queries or entry.n_groups not in (None, n_groups):
        raise GudaError(
            "evaluation-stale",
            f"{path} is of {entry.n_queries} queries and {entry.n_groups} groups, the run has {n_queries} and "
            f"{n_groups}; run: guda evaluate {run.root}",
        )
    return entry


def best_measured(entry: DatasetEntry, methods: Sequence[str]) -> str | None:
    """Of these methods the one that agreed best with retraining, ties by their order; None if none was measured."""
    known = [m for m in methods if m != CEILING and m in entry.methods and METRIC in entry.methods[m].metrics]
    return max(known, key=lambda m: entry.methods[m].metrics[METRIC].mean, default=None)


def run_best(run: Run, methods: Sequence[str]) -> str | None:
    """The same by the run's own evaluation; None where there is none that can be read."""
    from guda.steps import choose_queries, scores_folder

    try:
        path = scores_folder(run, choose_queries(run)) / "evaluation.json"
        return best_measured(read_entry(path), methods) if path.is_file() else None
    except GudaError:  # several sets and none is the recipe's, or a damaged file: the report says which
        return None


def marks(entry: DatasetEntry) -> list[Mark]:
    return [Mark(m, e.metrics[METRIC]) for m, e in entry.methods.items() if m != CEILING and METRIC in e.metrics]


def ceiling(entry: DatasetEntry) -> Figure | None:
    return (entry.ceiling or {}).get(METRIC)


def chance(entry: DatasetEntry) -> float | None:
    return (entry.random or {}).get(METRIC)


def sentences(entry: DatasetEntry, method: str) -> list[str]:
    """The figure in words, for the method whose answers the page shows."""
    found = entry.methods.get(method)
    said = []
    if found is not None and method != CEILING and METRIC in found.metrics:
        said.append(
            f"{method} ranks the same group first as real retraining for {share(found.metrics[METRIC])} "
            f"of the {entry.n_queries:,} pictures."
        )
        if (own := answered(entry, method)) is not None:
            said[-1] += f" Of those that get an answer ({entry.figures['answered']:,.0f}) for {share(own)}."
    top = ceiling(entry)
    if top is not None:
        said.append(
            f"Retraining is itself noisy: a second retraining agrees with the others for {share(top)}. "
            "That is the ceiling; no method can be expected to agree much better than that."
        )
    else:
        said.append("No ceiling was measured: that needs at least two retrainings with different seeds.")
    guess = chance(entry)
    if guess is not None:
        said.append(f"Guessing would be right for {percent(guess)}.")
    return said


def answered(entry: DatasetEntry, method: str) -> Figure | None:
    """Top-1 without foreign pictures, for which no group is named; None where there were none."""
    f, name = entry.figures, f"top1_answered.{method}"
    return Figure(mean=f[name], lo=f[f"{name}.lo"], hi=f[f"{name}.hi"]) if name in f else None


def agreed(share: Share) -> str:
    """91 % [86, 95]"""
    return f"{percent(share.mean)} [{100 * share.lo:.0f}, {100 * share.hi:.0f}]"


def claim_sentence(share: Share) -> str:
    """Beside a claim on a card."""
    return (
        f"claims of this strength: retraining agreed for {agreed(share)} of {share.n:,} "
        f"picture{'' if share.n == 1 else 's'}"
    )


def headline(entry: DatasetEntry | None, method: str, oracle: bool) -> str:
    """Why the page leads with this method."""
    found = None if entry is None else entry.methods.get(method)
    if found is not None and METRIC in found.metrics:
        best = share(found.metrics[METRIC])
        return f"{method} is shown first because it agreed best with retraining, for {best} of pictures."
    if oracle:
        return f"{method} is shown first; guda evaluate measures how far it agrees with retraining."
    return f"{method} is the recipe's first method; it was not validated against retraining."


def calibration_sentence(method: str, shares: list[Share]) -> str:
    """How often retraining confirmed the method's most confident claims."""
    sure = shares[-1]
    assert sure.said is not None
    held = (
        "less than it claimed: the probability covers the noise of scoring only, not the error of the method."
        if sure.hi < sure.said
        else f"not contradicted{', but there are too few pictures to be certain' if sure.n < FEW else ''}."
    )
    return (
        f"When {method} gave its first group a probability of {sure.claim.replace('-', ' to ')} (on average "
        f"{probability(sure.said)}), retraining agreed for {agreed(sure)} of {sure.n:,} "
        f"picture{'' if sure.n == 1 else 's'}: {held}"
    )
