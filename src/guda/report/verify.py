"""`guda verify`: what can be checked of a bundle, alone or beside the run that it came from.

Alone: the archive, the hash of every file, the signature, and arithmetic: the plain scores are what the terms sum to,
the map sums to the score of its group, the verdict's group is the first of the table. With the run: the digests of
model, data, recipe, picture and scores, and terms recomputed from the models, chosen by the hash of the manifest, so
that nobody can prepare for them. Recomputed terms have the same bits on the same kind of machine with the same
libraries; elsewhere they agree to a relative 1e-4, and that is reported as such.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.files import digest_arrays, digest_file
from guda.methods.base import get_method
from guda.methods.elbo import ElboMethod, has_counterfactuals
from guda.methods.terms import load_queries, run_scorer
from guda.parts import MemoryParts
from guda.report.bundle import MANIFEST, check_signature, read_bundle, sha256
from guda.report.exhibit import SCHEMA, TERM_COLUMNS, plain_scores
from guda.run.data import load_data
from guda.run.models import load_model, model_digest
from guda.run.run import Run
from guda.scoring.scorer import shard_name
from guda.table import csv_cell

TERMS = 20  # recomputed at least

CLOSE = 1e-4  # relative: other kernels round otherwise

EXACT, SUM = 1e-9, 1e-6  # relative: sums in another order; a map's sum


@dataclass
class Checked:
    """What was checked and what could not be. A bundle with anything wrong is refused instead."""

    bundle: str
    picture: str = ""
    verdict: str = ""
    signer: str | None = None  # SHA-256 of the public key
    checked: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    terms: dict[str, Any] | None = None  # {recomputed, bitwise, largest_difference}

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__}


def verify(path: Path, run: Run | None = None, key: Path | None = None) -> Checked:
    """Refuses a bundle with something wrong, naming it; else what could be checked, and what could not."""
    files = read_bundle(path)
    report = Checked(str(path))
    report.checked.append(f"{len(files)} files are those of the manifest, byte for byte")
    report.signer = check_signature(path, files, key)
    _signed(report, key)
    scores, terms = _read_scores(path, files), _read_terms(path, files)
    report.picture, report.verdict = scores["picture"], scores["verdict"]["text"]
    _arithmetic(path, scores, terms, files)
    report.checked.append(f"the plain scores of {len(scores['groups'])} groups are the sums of {len(terms):,} terms")
    report.checked.append(f"the map sums to the score of group {scores['map']['group']}")
    if run is None:
        report.unchecked.append("whether models and data with these hashes give these terms: give --run RUN")
    else:
        _against_run(path, run, files, scores, report)
        _recompute(path, run, files, scores, terms, report)
    report.unchecked += [
        "the pictures of maps and inversions, and the words of the page: they are drawn from the figures by guda",
        "when the bundle was made",
        "whether the method is right: that is what the comparison with retraining is for",
    ]
    return report


def _signed(report: Checked, key: Path | None) -> None:
    if report.signer is None:
        report.unchecked.append("who made it: it is not signed, so anybody can have made all of it")
    elif key is None:
        report.checked.append(f"it is signed; SHA-256 of the public key: {report.signer}")
        report.unchecked.append("whose key that is: give --key PUBLIC.pem, from the signer and not from the bundle")
    else:
        report.checked.append(f"it is signed by {key}")


def _refuse(path: Path, name: str, why: str) -> GudaError:
    return GudaError("bundle-inconsistent", f"{path}: {name}: {why}; do not rely on this bundle")


def _read_scores(path: Path, files: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        scores = json.loads(files["scores.json"])
        if scores["schema"] != SCHEMA:
            raise GudaError("bundle-schema-unknown", f"{path}: scores.json has schema {str(scores['schema'])[:40]!r}")
        for text in ("picture", "queries", "method"):
            if not isinstance(scores[text], str):
                raise TypeError
        _ = scores["verdict"]["text"], scores["map"]["group"], float(scores["map"]["nats"]), scores["digests"]["model"]
        _ = [(g["group"], float(g["nats"]), g["rank"]) for g in scores["groups"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _refuse(path, "scores.json", "it is not what guda writes") from None
    return dict(scores)


def _read_terms(path: Path, files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    try:
        rows = list(csv.DictReader(io.StringIO(files["terms.csv"].decode())))
        whole, texts = ("set", "round", "stratum", "t"), ("group", "kind")
        terms: list[dict[str, Any]] = [
            {k: csv_cell(row[k]) if k in texts else int(row[k]) if k in whole else float(row[k]) for k in TERM_COLUMNS}
            for row in rows
        ]
        if not terms or not all(math.isfinite(r["weight"] * r["share"] * r["square"]) for r in terms):
            raise ValueError
    except (ValueError, KeyError, TypeError, csv.Error):
        raise _refuse(path, "terms.csv", "it is not what guda writes") from None
    return terms


def _arithmetic(
    path: Path, scores: dict[str, Any], terms: Sequence[dict[str, Any]], files: Mapping[str, bytes]
) -> None:  # fmt: skip
    groups = [g["group"] for g in scores["groups"]]
    try:
        sums = plain_scores(terms, groups)
        cells = [float(r["nats"]) for r in csv.DictReader(io.StringIO(files["map.csv"].decode()))]
    except (KeyError, ValueError, TypeError, csv.Error):
        raise _refuse(path, "terms.csv or map.csv", "groups or cells are missing") from None
    size = max((abs(v) for v in sums.values()), default=0.0)
    for g in scores["groups"]:
        if not abs(sums[g["group"]] - g["nats"]) <= EXACT * max(size, 1e-300):
            raise _refuse(path, "scores.json", f"the terms of group {g['group']} do not sum to its score")
    mapped = scores["map"]
    whole = sum(abs(c) for c in cells)
    for total in (sum(cells), sums.get(mapped["group"], math.nan)):
        if not abs(total - mapped["nats"]) <= SUM * max(whole, 1e-300):
            raise _refuse(path, "map.csv", f"the map does not sum to the score of group {mapped['group']}")


def _against_run(path: Path, run: Run, files: Mapping[str, bytes], scores: dict[str, Any], report: Checked) -> None:
    """Digests of what went in."""

    def compare(what: str, mine: str, theirs: Any) -> None:
        if mine != theirs:
            raise GudaError(
                "bundle-other-run",
                f"{path}: {what} is {str(theirs)[:16]}..., that of {run.root} is {mine[:16]}...; give the run it came "
                "from",
            )
        report.checked.append(f"{what} is that of the run ({mine[:16]}...)")

    if scores["queries"] not in run.query_sets():
        raise GudaError("bundle-other-run", f"{path}: {run.root} has no query set {scores['queries'][:80]!r}")
    queries, digests = load_queries(run, scores["queries"]), scores["digests"]
    one = queries.subset([scores["picture"]])
    compare("the model", model_digest(run, "base"), digests.get("model"))
    compare("the training data", load_data(run).digest, digests.get("data"))
    method, mapped = get_method(run, scores["method"]), scores["map"]["group"]
    if not has_counterfactuals(method) or mapped not in method.groups:
        raise _refuse(path, "scores.json", "its method has no model without this group")
    file = run.path(str(method.sets()[0][1][mapped].counterfactual))
    compare(
        f"the model without {mapped}", digest_file(file) if file.is_file() else "gone", digests.get("counterfactual")
    )
    compare("the picture", digest_arrays(one.images[0]), digests.get("picture"))
    compare("the recipe", sha256(run.path("recipe.yaml").read_bytes()), sha256(files.get("recipe.yaml", b"")))
    if not np.array_equal(_pixels(path, files, one.shape), one.images[0]):
        raise GudaError("bundle-other-run", f"{path}: picture.png shows another picture than the run has")
    report.checked.append("picture.png shows the run's picture, pixel for pixel")
    parts = scores.get("terms")
    gone = [p for p in parts or {} if not (isinstance(p, str) and p.startswith("terms/") and run.has(p))]
    if gone or not isinstance(parts, dict):
        report.unchecked.append(f"{len(gone)} of the run's files of terms are not there any more")
    elif bad := next((p for p, checksum in parts.items() if digest_file(run.path(p)) != checksum), None):
        raise GudaError("bundle-other-run", f"{path}: {bad} of the run is not the file that the bundle names")
    else:
        report.checked.append(f"{len(parts)} files of terms are those of the run")


def _pixels(path: Path, files: Mapping[str, bytes], shape: tuple[int, int, int]) -> np.ndarray:
    """uint8 [C, H, W] of picture.png, which must have the size that the run's picture has."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(files["picture.png"]), formats=["PNG"]) as image:
            if image.size == (shape[2], shape[1]) and image.mode in ("L", "RGB"):
                pixels = np.asarray(image)
                return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    except (KeyError, OSError, ValueError, SyntaxError):
        pass
    raise _refuse(path, "picture.png", "it is not a picture of the run's size")


def _recompute(
    path: Path, run: Run, files: Mapping[str, bytes], scores: dict[str, Any], terms: list[dict[str, Any]],
    report: Checked,
) -> None:  # fmt: skip
    """Terms of some (model, round), drawn by the hash of the manifest."""
    method = get_method(run, scores["method"])
    assert has_counterfactuals(method)
    chosen = _choose(terms, sha256(files[MANIFEST]))
    load_model(run, "base")  # a model that is not there is said so first
    same, largest, count = 0, 0.0, 0
    for number, group, round_ in chosen:
        rows = sorted((r for r in terms if (r["set"], r["group"], r["round"]) == (number, group, round_)),
                      key=lambda r: r["stratum"])  # fmt: skip
        t, squares = _terms_of(run, method, scores, number, group, round_, path)
        if [r["t"] for r in rows] != t.tolist():
            raise _refuse(path, "terms.csv", f"the timesteps of round {round_} are not the run's")
        for row, mine in zip(rows, squares.tolist(), strict=True):
            count += 1
            same += row["square"] == mine
            apart = abs(row["square"] - mine) / max(abs(mine), 1e-300) if row["square"] != mine else 0.0
            largest = max(largest, apart)
    if largest > CLOSE:
        raise GudaError(
            "bundle-terms-differ",
            f"{path}: {count - same} of {count} recomputed terms differ, by up to {largest:.2g} of their size; these "
            "scores are not by these models",
        )
    report.terms = {"recomputed": count, "bitwise": same, "largest_difference": largest}
    recomputed = f"{count} terms of {len(chosen)} (model, round) were computed again from the models"
    if same == count:
        report.checked.append(f"{recomputed}: all have the same bits")
    else:
        report.checked.append(f"{recomputed}: they agree to {largest:.1g}")
        report.unchecked.append(f"the last bits of {count - same} terms: another processor or other library versions")


def _choose(terms: Sequence[dict[str, Any]], key: str) -> list[tuple[int, str, int]]:
    """(set, group, round) in an order that the key decides, until there are enough terms."""
    pairs = sorted({(r["set"], r["group"], r["round"]) for r in terms})
    strata = 1 + max(r["stratum"] for r in terms)
    order = generator("verify", key).permutation(len(pairs))
    return [pairs[i] for i in order[: -(-TERMS // strata)]]


def _terms_of(
    run: Run, method: ElboMethod, scores: dict[str, Any], number: int, group: str, round_: int, path: Path
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """(t, squares) [S] of the picture by one model, computed afresh. In blocks of a fixed size a picture alone gives
    the bits that it gave among others."""
    from dataclasses import replace

    sets = method.sets()
    if not 0 <= number < len(sets) or (group and group not in sets[number][1]):
        raise _refuse(path, "terms.csv", f"the run has no model of {method.method_id} without {group[:80]!r}")
    full, others = sets[number]
    model = others[group] if group else full
    scorer = replace(run_scorer(run), parts=MemoryParts())
    one = load_queries(run, scores["queries"]).subset([scores["picture"]])
    scorer.evaluate_round(one, {model: np.arange(1)}, round_)
    t, squares, _ = scorer.read_part(shard_name(one), model, round_)
    return t[0], squares[0]
