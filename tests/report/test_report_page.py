"""report.html: self-contained, safe, reproducible, and honest about what was not measured."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from guda.data.images import ImageData
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.evaluation.ceiling import compare
from guda.evaluation.results import dataset_entry
from guda.files import write_json
from guda.report.cards import MethodView, Scale
from guda.report.page import render, write_report
from guda.report.pictures import Symbols, data_uri, side_for
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.scoring.reading import LOG_UNIT, PATH_SIGN, READINGS, times
from guda.scoring.scores import Scores
from guda.table import decimals, interval, measured, percent, signed

EVIL = "<script>alert(1)</script>"
LABELS = [EVIL] * 4 + ["b & c"] * 8 + ["d"] * 2
SET = "samples"


def make_run(root, n=6, channels=1, side=8, seed=0, labels=LABELS, prompts=None) -> Run:
    rng = np.random.default_rng(seed)
    data = ImageData.from_arrays(rng.integers(0, 256, (len(labels), channels, side, side), np.uint8), labels)
    data.save(root / "data")
    pictures = rng.integers(0, 256, (n, channels, side, side), np.uint8)
    queries = Queries.from_arrays(pictures, ids=[f'q<"{i:04d}' for i in range(n)], prompts=prompts, name=SET)
    queries.save(root / "queries" / SET)
    recipe = Recipe.model_validate(
        {
            "name": "tiny", "data": {"source": "arrays"}, "model": {"scheduler": "squaredcos_cap_v2:1000"},
            "training": {"steps": 1}, "methods": {"logo": {}, "retrack": {}, "similarity-pixel": {}},
        }
    )  # fmt: skip
    lock = {"data_digest": data.digest, "groups": dict(zip(data.groups.names, data.groups.sizes, strict=True))}
    return Run.create(root, recipe, {**lock, "model": None})


def add_scores(run: Run, method: str, seed: int = 0, intervals: bool = True, unit: str = "nats") -> Scores:
    queries = Queries.load(run.path("queries", SET))
    groups = ImageData.load(run.path("data")).groups.names
    score = np.random.default_rng(seed).normal(3, 10, (queries.n, len(groups)))
    extra = {"stderr": np.ones_like(score), "lo": score - 2, "hi": score + 2} if intervals else {}
    scores = Scores(method, unit, "ELBO: sum over 1 <= t <= 996", queries.ids, groups, score, 240, **extra)
    scores.write(run.path("scores", SET, f"{method}.parquet"))
    return scores


def evaluate(run: Run, seeds: int = 2) -> None:
    retrack = Scores.read(run.path("scores", SET, "retrack.parquet")).score
    gold = np.stack([retrack + np.random.default_rng(s).normal(0, 3, retrack.shape) for s in range(seeds)])
    entry = dataset_entry(compare(gold, {"retrack": retrack}, n=50), list(range(seeds)), "ELBO", {}, {})
    write_json(run.path("scores", SET, "evaluation.json"), entry.model_dump(mode="json"))


@pytest.fixture
def run(tmp_path) -> Run:
    run = make_run(tmp_path / "run")
    add_scores(run, "retrack", 1)
    return run


class Page(HTMLParser):
    """Tags with their attributes, and the text outside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self.inside = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag if tag in ("script", "style") else self.inside

    def handle_endtag(self, tag):
        self.inside = "" if tag == self.inside else self.inside

    def handle_data(self, data):
        if not self.inside:
            self.said.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.said))


def embedded(html: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S).group(1))


def test_nothing_is_loaded_from_elsewhere(run):
    evaluate(run)
    html = write_report(run, SET).read_text()
    for tag, attrs in Page(html).tags:
        for name in ("src", "href", "data", "action", "srcset", "poster"):
            value = attrs.get(name) or "#"
            assert value.startswith(("#", "data:image/png;base64,")), (tag, name, value[:60])
        assert tag not in ("link", "iframe", "object", "embed", "base")
    assert not re.search(r"url\(|@import|https?://|fetch\(|XMLHttpRequest|\bimport\(", html)


def test_names_are_text_and_never_markup(run):
    html = write_report(run, SET).read_text()
    assert EVIL not in html
    page = Page(html)
    assert [a for t, a in page.tags if t == "script"] == [{"type": "application/json", "id": "data"}, {}]
    assert EVIL in page.text
    assert 'q<"0003' in page.text
    assert embedded(html)["groups"][0]["name"] == EVIL
    assert not [a for _, attrs in page.tags for a in attrs if a.startswith("on")]


def test_only_its_own_script_may_run(run):
    import base64
    import hashlib

    html = write_report(run, SET).read_text()
    script = re.search(r"<script>(.*?)</script>", html, re.S).group(1)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}'" in html


def test_same_run_same_bytes(run, tmp_path):
    import shutil

    evaluate(run)
    first = write_report(run, SET).read_bytes()
    assert write_report(Run.open(run.root), SET).read_bytes() == first
    shutil.copytree(run.root, tmp_path / "elsewhere")
    assert write_report(Run.open(tmp_path / "elsewhere"), SET).read_bytes() == first


def test_without_an_oracle_it_says_so(run):
    text = Page(render(run, SET)).text
    assert "No ceiling was measured." in text
    assert "retraining ranks" not in text


def test_one_retraining_gives_no_ceiling(run):
    evaluate(run, seeds=1)
    text = Page(render(run, SET)).text
    assert "No ceiling was measured: that needs at least two retrainings" in text


def test_evaluation_table_is_the_one_of_the_terminal(run):
    from guda.evaluation.results import DatasetEntry
    from guda.evaluation.tables import comparison
    from guda.files import read_json

    evaluate(run)
    text = Page(render(run, SET)).text
    entry = DatasetEntry.model_validate(read_json(run.path("scores", SET, "evaluation.json")))
    for row in comparison(SET, entry).texts():
        for cell in row:
            assert cell in text
    assert "That is the ceiling" in text


def test_stale_evaluation_is_refused(run):
    evaluate(run)
    value = json.loads(run.path("scores", SET, "evaluation.json").read_text())
    write_json(run.path("scores", SET, "evaluation.json"), value | {"n_queries": 99})
    with pytest.raises(GudaError, match="guda evaluate"):
        render(run, SET)


def test_similarity_only_has_no_intervals_and_no_verdicts(tmp_path):
    run = make_run(tmp_path / "run")
    add_scores(run, "similarity-pixel", intervals=False, unit="cosine")
    html = render(run, SET)
    text = Page(html).text
    assert "This method has no error model" in text
    assert "no interval, so no verdict" in text
    assert "The score is in nats" not in text
    assert embedded(html)["methods"][0]["lo"] is None


def test_main_method_is_an_elbo_method_other_than_the_oracle(tmp_path):
    run = make_run(tmp_path / "run")
    for i, name in enumerate(("similarity-pixel", "retrack", "logo")):
        add_scores(run, name, i, intervals=name[0] != "s", unit="cosine" if name[0] == "s" else "nats")
    html = render(run, SET)
    data = embedded(html)
    assert [m["id"] for m in data["methods"]] == ["logo", "retrack", "similarity-pixel"]
    assert data["methods"][data["main"]]["id"] == "retrack"
    logo = Scores.read(run.path("scores", SET, "logo.parquet"))
    assert data["oracle"] == logo.score.argmax(axis=1).tolist()
    assert Page(html).text.count("retraining ranks group") == 6


def test_the_method_that_was_right_leads(tmp_path):
    run = make_run(tmp_path / "run")
    for i, name in enumerate(("retrack", "shift", "esd", "similarity-pixel", "logo")):
        add_scores(run, name, i, intervals=name[0] != "s" or name == "shift", unit="nats" if i != 3 else "cosine")
    data = embedded(render(run, SET))
    before = data["methods"][data["main"]]["id"]
    assert "guda evaluate measures how far it agrees" in Page(render(run, SET)).text

    def measured(**top1):
        figure = lambda m: {"mean": m, "lo": m, "hi": m}  # noqa: E731
        methods = {name.replace("_", "-"): {"metrics": {"top1": figure(m)}} for name, m in top1.items()}
        value = {"n_queries": 6, "seeds": [1], "ceiling": None, "methods": methods, "n_groups": 3}
        write_json(run.path("scores", SET, "evaluation.json"), value)
        html = render(run, SET)
        data = embedded(html)
        main = data["methods"][data["main"]]["id"]
        assert f'<option value="{data["main"]}" selected>{main}' in html
        return main, Page(html).text

    main, text = measured(retrack=0.4, shift=0.9, esd=0.5, similarity_pixel=0.95)
    assert main == "shift"  # of those with counterfactuals
    assert "shift is shown first because it agreed best with retraining, for 90 %" in text
    assert measured(retrack=0.9, shift=0.04, esd=0.5)[0] == "retrack"
    everyone = [m["id"] for m in data["methods"] if m["id"] in ("retrack", "shift", "esd")]
    assert measured(retrack=0.5, shift=0.5, esd=0.5)[0] == everyone[0]  # ties: in the recipe's order
    assert measured(similarity_pixel=0.9)[0] == before  # nothing was measured of any with models


def test_without_an_oracle_the_headline_is_not_validated(run):
    assert "retrack is the recipe's first method; it was not validated against retraining." in Page(
        render(run, SET)
    ).text.replace("’", "'")


def test_every_picture_shows_every_group_ranked_without_javascript(run):
    html = render(run, SET)
    scores = Scores.read(run.path("scores", SET, "retrack.parquet"))
    cards = html.split('<li class="card ')[1:]
    assert len(cards) == 6
    for q, card in enumerate(cards):
        printed = re.findall(r'<span class="number">([^<]+)</span>', card.split("</ol>")[0])
        ranked = scores[q].ranked
        assert [g.score for g in ranked] == sorted(scores.score[q], reverse=True)
        assert printed == [measured(g.score, g.lo, g.hi, decimals(scores.score))[0] for g in ranked]


def test_per_image_view_divides_by_group_size(run):
    scores = Scores.read(run.path("scores", SET, "retrack.parquet"))
    data = ImageData.load(run.path("data"))
    view = MethodView(scores, data.groups.sizes, "")
    assert data.groups.sizes == (4, 8, 2)
    np.testing.assert_allclose(view.per_score, scores.score / [4, 8, 2] * 1000)
    html = render(run, SET)
    q, g = 0, int(scores.score[0].argmax())
    expected = signed(scores.score[q, g] / data.groups.sizes[g] * 1000, decimals(view.per_score))
    assert f"{expected} per 1,000 images (group of {data.groups.sizes[g]})" in html
    mean = signed((scores.score[:, 2] / 2 * 1000).mean(), decimals(view.per_score))
    assert f"<td>{mean}</td>" in html


def test_per_image_verdict_follows_the_same_rule(tmp_path):
    run = make_run(tmp_path / "run", n=1)
    groups = ImageData.load(run.path("data")).groups
    score = np.array([[10.0, 14.0, 6.0]])  # per 1,000 images: 2500, 1750, 3000
    scores = Scores("retrack", "nats", "ELBO", ('q<"0000',), groups.names, score, 1, None, score - 1, score + 1)
    view = MethodView(scores, groups.sizes, "")
    assert (view.verdicts[0].kind, view.verdicts[0].headline) == ("stands-out", "group b & c stands out")
    assert view.per_verdicts[0].kind == "close"


def test_no_scores_is_an_error_that_says_what_to_run(tmp_path):
    with pytest.raises(GudaError, match="guda score"):
        render(make_run(tmp_path / "run"), SET)


def test_scores_of_other_pictures_are_refused(run):
    make_run(run.root, n=4)
    with pytest.raises(GudaError, match="other queries"):
        render(Run.open(run.root), SET)


def test_prompts_are_shown(tmp_path):
    run = make_run(tmp_path / "run", n=2, prompts=["a <b>cat</b>", "a dog"])
    add_scores(run, "retrack")
    assert "a <b>cat</b>" in Page(render(run, SET)).text


def test_many_groups_fold_but_are_all_there(tmp_path):
    run = make_run(tmp_path / "run", n=2, labels=[f"g{i}" for i in range(20)])
    add_scores(run, "retrack")
    html = render(run, SET)
    assert html.count('<span class="track">') == 40
    assert "8 more groups" in html


@pytest.mark.parametrize(("n", "channels", "side", "limit"), [(500, 1, 8, 4e6), (120, 3, 256, 12e6)])
def test_size_bound(tmp_path, n, channels, side, limit):
    """Noise does not compress, so this is the worst case."""
    run = make_run(tmp_path / "run", n, channels, side, labels=[f"g{i % 10}" for i in range(40)])
    add_scores(run, "retrack")
    assert write_report(run, SET).stat().st_size < limit


def test_thumbnail_budget():
    assert side_for(1) == 128
    for n in (1, 500, 2048, 5000):
        assert 4 * n * side_for(n) ** 2 <= 21e6 or side_for(n) == 32


def test_equal_exemplars_share_a_symbol():
    symbols, image = Symbols(), np.zeros((3, 8, 8), np.uint8)
    assert symbols.add(image) == symbols.add(image.copy())
    assert symbols.add(image + 1) != symbols.add(image)
    assert len(symbols.items()) == 2


def test_thumbnails_keep_small_pictures_and_shrink_large_ones():
    import base64
    import io

    from PIL import Image

    def opened(image):
        return Image.open(io.BytesIO(base64.b64decode(data_uri(image, 64).partition(",")[2])))

    small = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
    assert (np.asarray(opened(small)) == small[0]).all()
    assert opened(np.zeros((3, 100, 200), np.uint8)).size == (64, 32)


def test_numbers():
    assert [signed(v, 1) for v in (12.34, -4.0, 0.04, -0.04, 1234.5)] == ["+12.3", "−4.0", "0.0", "0.0", "+1,234.5"]
    assert interval(-1.0, 2.0, 1) == "[−1.0, 2.0]"
    assert interval(None, None, 1) == ""
    assert [decimals(np.array([v])) for v in (60.0, 5.0, 0.9, 500.0, 0.0)] == [1, 2, 3, 0, 1]
    assert [percent(v) for v in (0.0, 0.001, 0.5, 0.999, 1.0)] == ["0 %", "<1 %", "50 %", ">99 %", "100 %"]


def test_scale_has_zero_and_round_ticks():
    scale = Scale.of(np.array([-20.0, 80.0]), None)
    assert (scale.at(-20), scale.at(0), scale.at(80)) == (0, 20, 100)
    assert [label for _, label in scale.ticks()] == ["0", "50"]
    assert Scale.of(np.array([5.0, 8.0])).lo == 0
    assert Scale.of(np.zeros(3)).ticks()[0] == (0, "0.0")


def test_a_path_page_asks_another_question_and_gives_the_direction_back(tmp_path):
    run = make_run(tmp_path / "run")
    found = add_scores(run, "retrack")
    plain = render(run, SET)
    size, elbo = np.abs(found.score) + 0.1, np.where(np.arange(6) % 2, 9.0, -9.0)[:, None] * np.ones((1, 3))
    path = replace(found, score=size, lo=size - 0.1, hi=size + 0.1, sign=PATH_SIGN, elbo=elbo,
                   elbo_stderr=np.ones_like(elbo))  # fmt: skip
    path.write(run.path("scores", SET, "retrack.parquet"))
    page = render(run, SET)
    assert READINGS["elbo"].question in plain
    assert READINGS["path"].question in page
    assert READINGS["elbo"].question not in page
    shown = re.findall(r'<p class="note direction">([^<]*)</p>', page)
    assert [text.rpartition(" ")[2] for text in shown] == ["better", "worse"] * 3
    assert 'class="note direction"' not in plain
    sure = replace(path, elbo_stderr=np.full_like(elbo, 5.0))  # within two standard errors: not told
    sure.write(run.path("scores", SET, "retrack.parquet"))
    assert not re.findall(r'<p class="note direction">', render(run, SET))


def test_a_log_ratio_is_told_as_a_factor_on_every_card(tmp_path):
    run = make_run(tmp_path / "run")
    found = add_scores(run, "retrack", unit=LOG_UNIT)
    page, first = render(run, SET), found[0].top()[0]
    assert times(first.score) in page
    assert READINGS["path-excess"].question in page
    assert json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])["methods"][0]["times"] is True
