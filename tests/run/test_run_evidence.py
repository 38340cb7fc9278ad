"""Maps, inversions and neighbours of a run: sums, shares, resume, and that other weights are refused."""

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tinyrun import SET, Inline, copy_run, tiny, write_digits
from typer.testing import CliRunner

from guda import steps
from guda.cli.main import app
from guda.data.images import to_float
from guda.errors import GudaError
from guda.files import read_tensors, write_tensors
from guda.methods.base import get_method
from guda.methods.elbo import ElboMethod, has_counterfactuals
from guda.methods.maps import map_tasks, picture_map
from guda.methods.terms import load_queries
from guda.report.bundle import read_bundle, write_bundle
from guda.report.content import Content
from guda.report.exhibit import Exhibit, choose_view, first_group
from guda.report.verify import verify
from guda.run.data import load_data
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.scoring.bands import default_edges
from guda.steps.evidence import gather_evidence, map_picture

METHODS = {
    "logo": {"seeds": [1, 2]},
    "shift": {"steps": 3, "batch_forget": 8, "batch_retain": 8},
    "posterior": {"components": 1},
    "hybrid": {"edge": 0.4, "share": 0.25},
}
SCORING = {"strata": 6, "rounds": 3, "block": 16, "shard": 5}
ESTIMANDS = {
    "elbo": {"estimand": "elbo", "plan": "importance", "antithetic": True},
    "path": {"estimand": "path", "excess": True, "plan": "stratified"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    root = tmp_path_factory.mktemp("evidence")
    recipe = tiny(write_digits(root / "data")).model_dump(mode="json") | {"methods": METHODS}
    found = steps.init(root / "elbo", Recipe.from_dict(recipe, "test"))
    engine = Inline()
    steps.fit(found, ["logo", "hybrid"], engine)
    steps.sample(found, engine)
    made = {"elbo": found, "path": copy_run(root / "path", root / "elbo")}
    for name, run in made.items():
        run.update(Recipe.from_dict(recipe | {"scoring": SCORING | ESTIMANDS[name]}, "test"))
        steps.score(run, SET, list(METHODS), engine)
    return made


def elbo_method(run: Run, name: str) -> ElboMethod:
    found = get_method(run, name)
    assert has_counterfactuals(found)
    return found


@pytest.mark.parametrize("estimand", ["elbo", "path"])
@pytest.mark.parametrize("name", ["logo", "shift", "posterior", "hybrid"])
def test_a_map_sums_to_the_plain_score_whole_and_by_band(runs: dict[str, Run], estimand: str, name: str) -> None:
    run = runs[estimand]
    queries, method = load_queries(run, SET), elbo_method(run, name)
    d = method.contributions(method.sets(), method.reader(queries))  # what the table of scores is made of
    plain = d.mean(axis=0).sum(axis=-1)
    for q, g in ((0, 1), (7, 2)):
        found, worse = map_picture(run, SET, queries.ids[q], name, method.groups[g], Inline())
        assert (worse is None) == (estimand == "elbo")
        assert found.whole.nats.shape == (8, 8)
        assert found.whole.score == pytest.approx(plain[q, g], rel=1e-6)
        np.testing.assert_allclose(found.contributions.sum(axis=(2, 3)), d[:, q, g], rtol=1e-6, atol=1e-12)
        bands = found.bands(default_edges(100))
        np.testing.assert_allclose(sum(b.nats for b in bands), found.whole.nats, rtol=1e-9, atol=1e-12)
        assert (found.whole.nats >= 0).all() or estimand == "elbo"


def test_maps_resume_and_refuse_other_weights(runs: dict[str, Run], tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run", runs["path"].root)
    queries, method = load_queries(run, SET), elbo_method(run, "shift")
    picture, group = queries.ids[3], method.groups[0]
    tasks = map_tasks(method, queries, picture, [group])
    before, _ = map_picture(run, SET, picture, "shift", group, Inline())
    parts = [run.path(name) for task in tasks for name in task.makes]
    bytes_ = [p.read_bytes() for p in parts]
    parts[1].unlink()  # a round is lost
    engine = Inline()
    again, _ = map_picture(run, SET, picture, "shift", group, engine)
    assert len(engine.ran) == 1
    assert [p.read_bytes() for p in parts] == bytes_
    np.testing.assert_array_equal(again.contributions, before.contributions)
    engine = Inline()
    map_picture(run, SET, picture, "shift", group, engine)
    assert engine.ran == []
    content, header = read_tensors(parts[0])
    write_tensors(parts[0], content, header | {"model": "other"})
    with pytest.raises(GudaError) as e:
        picture_map(method, queries, picture, group)
    assert e.value.code == "map-stale"


def test_evidence_shows_the_picture_with_and_without_the_group(runs: dict[str, Run]) -> None:
    run = runs["path"]
    queries = load_queries(run, SET)
    found = gather_evidence(run, SET, queries.ids[2], "hybrid", "1", Inline())
    assert found.drawn.by == "shift"  # a hybrid draws by the first of its parts
    assert found.drawn.psnr > 30
    assert (found.drawn.without != found.drawn.full).any()
    data = load_data(run)
    members = data.groups.members(data.groups.index("1"))
    apart = np.sqrt(((to_float(data.images[members]) - to_float(queries.images[2:3])) ** 2).sum(axis=(1, 2, 3)))
    assert found.near[0].index.tolist() == members[np.argsort(apart)[:5]].tolist()
    np.testing.assert_allclose(found.near[0].distance, np.sort(apart)[:5], rtol=1e-5)
    assert set(found.near[1].index.tolist()) <= set(members.tolist())
    assert (np.diff(found.near[1].distance) >= 0).all()
    engine = Inline()
    again = gather_evidence(run, SET, queries.ids[2], "hybrid", "1", engine)
    assert engine.ran == []
    assert torch.equal(torch.from_numpy(again.drawn.without), torch.from_numpy(found.drawn.without))


def test_what_has_no_place_in_the_picture_is_refused(runs: dict[str, Run]) -> None:
    for picture, method, group, code in (
        ("s0-00000", "similarity-pixel", "1", "map-method-unsupported"),
        ("s0-00000", "shift", "9", "group-unknown"),
        ("s0-99999", "shift", "1", "query-unknown"),
    ):
        with pytest.raises(GudaError) as e:
            map_picture(runs["path"], SET, picture, method, group, Inline())
        assert e.value.code == code


def make_exhibit(run: Run, method: str, picture: str) -> Exhibit:
    content = Content.read(run, SET)
    view = choose_view(content, method)
    return Exhibit(content, view, gather_evidence(run, SET, picture, method, first_group(view, picture), Inline()))


@pytest.mark.parametrize(("estimand", "method"), [("path", "hybrid"), ("elbo", "logo"), ("path", "posterior")])
def test_an_exhibit_is_verified_bitwise_against_its_run(
    runs: dict[str, Run], estimand: str, method: str, tmp_path: Path
) -> None:
    run = runs[estimand]
    made = make_exhibit(run, method, "s0-00003")
    files = made.files()
    assert made.files() == files
    verdict = made.view.verdicts[made.q]
    page = files["exhibit.html"].decode()
    assert verdict.headline in html.unescape(page)
    assert json.loads(files["scores.json"])["verdict"]["text"] == verdict.text
    assert made.digests["model"] in page
    assert page.count("of 2</b>") == 2
    path = write_bundle(tmp_path / "bundle.zip", files)
    found = verify(path, run)
    assert found.terms is not None
    assert found.terms["recomputed"] >= 20
    assert found.terms["bitwise"] == found.terms["recomputed"]
    assert verify(path).terms is None


def test_a_bundle_that_does_not_add_up_is_refused(runs: dict[str, Run], tmp_path: Path) -> None:
    run = runs["path"]
    files = make_exhibit(run, "shift", "s0-00003").files()
    scores, terms = json.loads(files["scores.json"]), files["terms.csv"].decode().splitlines()

    def code(changes: dict[str, bytes], run: Run | None = None) -> str:
        with pytest.raises(GudaError) as e:
            verify(write_bundle(tmp_path / "bundle.zip", files | changes), run)
        return e.value.code

    higher = [g | {"nats": g["nats"] * 1.5} if g["rank"] == 2 else g for g in scores["groups"]]
    assert code({"scores.json": json.dumps(scores | {"groups": higher}).encode()}) == "bundle-inconsistent"
    assert code({"map.csv": b"row,column,nats,stderr,clear\n0,0,1.0,0.1,1\n"}) == "bundle-inconsistent"
    assert code({"terms.csv": "\n".join(terms[:-1]).encode()}) == "bundle-inconsistent"
    assert code({"scores.json": b"[]"}) == "bundle-inconsistent"
    other = scores | {"digests": scores["digests"] | {"data": "0" * 64}}
    assert code({"scores.json": json.dumps(other).encode()}, run) == "bundle-other-run"
    # terms and scores that add up, but are not by these models: everything is twice as large
    twice = [*terms[:1], *(f"{row.rpartition(',')[0]},{2 * float(row.rpartition(',')[2])!r}" for row in terms[1:])]
    cells = files["map.csv"].decode().splitlines()
    doubled = [
        *cells[:1],
        *(",".join([*c[:2], repr(2 * float(c[2])), *c[3:]]) for c in (r.split(",") for r in cells[1:])),
    ]
    both = scores | {
        "groups": [g | {"nats": 2 * g["nats"]} for g in scores["groups"]],
        "map": scores["map"] | {"nats": 2 * scores["map"]["nats"]},
    }
    forged = {
        "terms.csv": "\n".join(twice).encode(),
        "map.csv": "\n".join(doubled).encode(),
        "scores.json": json.dumps(both).encode(),
    }
    assert verify(write_bundle(tmp_path / "forged.zip", files | forged)).terms is None
    assert code(forged, run) == "bundle-terms-differ"


def test_commands(runs: dict[str, Run], tmp_path: Path) -> None:
    run, picture = runs["path"], "s0-00003"
    made = make_exhibit(run, "hybrid", picture)  # so that the commands compute nothing
    root, out = str(run.root), tmp_path / "exhibit.html"

    def said(*arguments: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
        assert result.exit_code == 0
        return dict(json.loads(result.stdout))

    found = said("map", root, picture, "--method", "hybrid", "--out", str(tmp_path / "map.png"))
    assert found["nats"] == made.evidence.map.whole.score
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"
    said("exhibit", root, picture, "--method", "hybrid", "--zip", "--out", str(out))
    assert read_bundle(out.with_suffix(".zip"))["exhibit.html"] == out.read_bytes()
    assert said("verify", str(out.with_suffix(".zip")), "--run", root)["terms"]["recomputed"] >= 20
    for arguments, code in (
        (("map", root, picture, "--out", str(tmp_path / "map.svg")), "map-not-png"),
        (("exhibit", root, picture, "--sign", str(out)), "sign-without-zip"),
        (("exhibit", root, picture, "--method", "retrack"), "method-not-scored"),
        (("verify", str(out)), "bundle-damaged"),
    ):
        with pytest.raises(GudaError) as e:
            CliRunner().invoke(app, list(arguments), catch_exceptions=False)
        assert e.value.code == code
