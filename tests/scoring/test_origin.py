"""Where a picture comes from: verdicts, sentences, and what is kept in tables and handed on by the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from guda.report.cards import MethodView
from guda.scoring.origin import Origin, make_origins, sentences, summary
from guda.scoring.scores import Scores
from guda.web.job import Snapshot, one_picture, to_csv, to_json

ORIGINS = make_origins([0.4, 0.01, 0.01], [None, None, ("img-7", "b", 0.2)], accept=False)


def make_scores(origins: tuple[Origin, ...] | None) -> Scores:
    score = np.array([[9.0, 1.0], [600.0, 1.0], [9.0, 1.0]])
    return Scores("shift", "nats", "ELBO", ("own", "noise", "near"), ("a", "b"), score, 24,
                  lo=score - 1, hi=score + 1, origins=origins)  # fmt: skip


def test_a_copy_is_never_foreign_and_needs_no_override() -> None:
    assert [o.foreign for o in ORIGINS] == [False, True, False]
    accepted = make_origins([0.4, 0.01, 0.01], [None, None, ("img-7", "b", 0.2)], accept=True)
    assert [o.accepted for o in accepted] == [False, True, False]
    assert [v.kind for v in make_scores(accepted).verdict().values()] == ["stands-out", "stands-out", "copy"]
    assert accepted[1].remark == "this model does not make such pictures (p = 0.01); attributed on request"


def test_every_door_has_the_verdict_of_the_table(tmp_path: Path) -> None:
    make_scores(ORIGINS).write(tmp_path / "shift.parquet")
    scores = Scores.read(tmp_path / "shift.parquet")
    assert scores.origins == ORIGINS
    view = MethodView(scores, [5, 5], "")
    for verdicts in (view.verdicts, view.per_verdicts, list(scores.verdict().values())):
        assert [v.kind for v in verdicts] == ["stands-out", "foreign", "copy"]
    assert view.verdicts[1].groups == ()
    assert str(scores["noise"]).startswith("noise: this model does not make such pictures")
    assert len(str(scores["noise"]).splitlines()) == 1  # and no group is named
    assert scores["noise"].to_json()["groups"] == []
    for name, kind in (("noise", "foreign"), ("near", "copy")):
        one = one_picture(scores, name)
        told = to_json(Snapshot("upload", None, one, (1, 1), 12), MethodView(one, [5, 5], ""))
        assert told["verdict"]["kind"] == kind
        assert bool(told["groups"]) == (kind != "foreign")
        assert len(to_csv(told).splitlines()) == 1 + len(told["groups"])
        assert told["origin"] == scores[name].origin.to_json()
    assert to_json(Snapshot("upload", None, one_picture(make_scores(None)), (1, 1), 12), view)["origin"] is None


def test_the_summary_counts_what_was_asked() -> None:
    told = summary(("own", "noise", "near"), ORIGINS)
    assert told == {"asked": True, "foreign": ["noise"], "accepted": [], "copies": {"near": "img-7"}}
    assert sentences(told, 3) == [
        "1 of 3 pictures is foreign to this model, so no group is named: noise",
        "1 of 3 nearly repeats a training image: near",
    ]
    many = summary([f"q{i}" for i in range(9)], make_origins([0.01] * 9, [None] * 9, accept=False))
    assert sentences(many, 9) == [
        "9 of 9 pictures are foreign to this model, so no group is named: q0, q1, q2 and 6 more"
    ]
    unknown = summary(("own",), make_origins(None, [None], accept=True))
    assert not unknown["asked"]
    assert sentences(unknown, 1) == []
