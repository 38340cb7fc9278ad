"""Two groups left out together, on the tiny run: what is trained, what it is compared with, what stays untouched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tinyrun import SET, Inline, copy_run, exact

from guda import steps
from guda.data.groups import Groups
from guda.diffusion.stream import Stream
from guda.errors import GudaError
from guda.files import read_json
from guda.methods.base import get_method
from guda.methods.regroup import in_order, joined, pair_files, pairs_of
from guda.methods.terms import load_queries, run_scorer
from guda.run.data import load_data
from guda.run.models import load_model, need_training
from guda.run.run import Run
from guda.scoring.scorer import Reader
from guda.steps.bank import bank_verify
from guda.steps.pairs import PairsFile
from guda.unlearning.bank import Counterfactual
from guda.unlearning.unlearn import unlearn_group
from refusals import refused

PAIR = ("0", "1")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, PairsFile, dict[str, str]]:
    run = copy_run(tmp_path_factory.mktemp("pairs") / "run")
    before = exact(run.root)
    found = steps.pairs(run, SET, steps.parse_pairs(run, ["1,0"]), ["retrack"], Inline())
    return run, found, before


def test_joined_groups_keep_every_image() -> None:
    groups = Groups.from_labels(["a", "b", "c", "b", "d"])
    found = groups.joined(2, 0, name="a + c")
    assert found.names == ("a + c", "b", "d")
    assert found.labels.tolist() == [0, 1, 0, 1, 2]


def test_a_retraining_without_two_groups_deletes_both_from_the_stream() -> None:
    groups = Groups.from_labels(list("abcabcabdd"))
    whole = Stream((1, "train"), groups, (1, 2, 2), 50)
    both = Stream((1, "train"), groups.joined(0, 2, name="a + c"), (1, 2, 2), 50, leave_out=0)
    every, left = whole.take(30), both.take(15)  # three epochs of 10, and of the 5 that are b or d
    kept = np.isin(groups.labels[every.index], [1, 3])
    for field in ("index", "t", "eps", "flip"):
        assert np.array_equal(getattr(every, field)[kept], getattr(left, field))


def test_files_lie_beside_the_singles_which_do_not_change(done: tuple[Run, PairsFile, dict[str, str]]) -> None:
    run, _, before = done
    after = exact(run.root)
    assert {k: after[k] for k in before} == before
    new = sorted(set(after) - set(before))
    assert all("/pairs/" in name for name in new)
    logo = get_method(run, "logo")
    assert run.has(f"{logo.folder}/s1/pairs/0000-0001-0-1.safetensors")
    assert Counterfactual.load(run.path(f"{logo.folder}/s2/pairs/0000-0001-0-1.safetensors")).group == "0 + 1"
    assert list(pair_files(logo).values()) == ["0 + 1"] * 2
    assert bank_verify(run)["problems"] == []


def test_an_operator_forgets_the_union(done: tuple[Run, PairsFile, dict[str, str]]) -> None:
    run = done[0]
    data, retrack = load_data(run), get_method(run, "retrack")
    labels = np.where(data.groups.labels == 2, 1, 0)
    byhand = replace(data, groups=Groups(("0 + 1", "rest"), np.eye(2, dtype=bool)[labels]))
    expected = unlearn_group(load_model(run, "base"), byhand, "0 + 1", "retrack", retrack.config).tensors
    stored = Counterfactual.load(run.path(pairs_of(retrack, [PAIR]).file("0 + 1"))).tensors
    assert expected.keys() == stored.keys()
    assert all(torch.equal(expected[k], stored[k]) for k in stored)


def test_figures_are_the_terms_differences(done: tuple[Run, PairsFile, dict[str, str]]) -> None:
    run, found, _ = done
    assert [(r.method, r.a, r.b) for r in found.rows] == [("logo", "0", "1"), ("retrack", "0", "1")]
    assert PairsFile.model_validate(read_json(run.path("pairs.json"))) == found
    queries, logo = load_queries(run, SET), get_method(run, "logo")
    both, read = pairs_of(logo, [PAIR]), Reader(run_scorer(run), queries, run.recipe.scoring.rounds)

    def elbo(model):  # type: ignore[no-untyped-def]
        return -read(model).kl.mean(axis=0).sum(axis=-1)

    excess = []
    for seed in (1, 2):
        full, single = logo.seed_sets()[seed]
        joint = both.seed_sets()[seed][1]["0 + 1"]
        excess.append((elbo(full) - elbo(joint)) - (elbo(full) - elbo(single["0"])) - (elbo(full) - elbo(single["1"])))
    row = found.rows[0]
    assert row.difference.mean == pytest.approx(np.mean(excess))
    assert row.joint.mean - row.total.mean == pytest.approx(np.mean(excess))
    assert row.repeat == pytest.approx(np.corrcoef(*excess)[0, 1])
    assert row.by_seed == pytest.approx([float(np.mean(e)) for e in excess])
    assert found.rows[1].against_logo is not None
    assert "0 + 1, retrack" in run.path("pairs.md").read_text()


def test_again_nothing_runs_and_the_table_is_the_same(done: tuple[Run, PairsFile, dict[str, str]]) -> None:
    run, found, _ = done
    engine, text = Inline(), run.path("pairs.json").read_bytes()
    assert steps.pairs(run, SET, [PAIR], ["logo", "retrack"], engine) == found
    assert engine.ran == []
    assert run.path("pairs.json").read_bytes() == text
    assert steps.pairs(run, SET, [PAIR], None, engine) == found  # the scored operators
    assert need_training(run).steps == 40


def test_a_pair_given_the_other_way_round_is_the_same_pair(done: tuple[Run, PairsFile, dict[str, str]]) -> None:
    run, found, _ = done
    engine = Inline()
    assert steps.pairs(run, SET, [("1", "0"), PAIR], ["retrack"], engine) == found
    assert engine.ran == []


def test_what_cannot_be_paired_is_refused(done: tuple[Run, PairsFile, dict[str, str]], tmp_path: Path) -> None:
    run = done[0]
    for text, message in (("0", "comma"), ("0,0", "two different groups"), ("0,7", "unknown group '7'")):
        with pytest.raises(GudaError, match=message):
            steps.parse_pairs(run, [text])
    assert steps.parse_pairs(run, ["1,0", " 0 , 1", "2,1"]) == [("0", "1"), ("1", "2")]
    with refused("pair-method-unsupported"):
        steps.pairs(run, SET, [PAIR], ["similarity-pixel"], Inline())
    with refused("pair-method-unsupported"):
        pairs_of(get_method(run, "esd"), [PAIR])
    with refused("scores-missing"):
        steps.pairs(run, SET, [PAIR], ["shift"], Inline())
    with refused("pair-covers-all"):
        in_order(Groups.from_labels(["a", "b"]), ("a", "b"))
    with refused("pair-not-given"):
        steps.pairs(run, SET, [], None, Inline())
    assert joined(load_data(run).groups, PAIR).sizes == (32, 16)
