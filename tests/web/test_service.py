"""Asking a run: the page's answer is the command line's, byte for byte; many may ask, one is scored at a time."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np
import pytest
from PIL import Image
from tinyrun import SET, Inline, copy_run
from uploads import grey

from guda import steps
from guda.errors import GudaError
from guda.methods.regroup import PLACEBO
from guda.methods.terms import load_queries
from guda.report.cards import MethodView
from guda.report.page import PLACEBO_SAYS
from guda.run.run import Run
from guda.scoring.reading import RACED
from guda.scoring.scores import Scores
from guda.web import answer
from guda.web.batch import Batch, Batches, Entry, line, progress
from guda.web.evidence import evidence_section, gather
from guda.web.job import one_picture, to_csv, to_json
from guda.web.results import (
    find,
    gallery,
    leaderboard,
    open_result,
    others,
    results,
    runs_table,
    set_gallery,
    shares_tables,
)
from guda.web.service import Service, stored_scores
from guda.web.uploads import Full, Limits, Refused


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    made = Service(copy_run(tmp_path_factory.mktemp("web") / "run").root)
    made.warm()
    return made


def test_methods_that_can_be_raced(service: Service) -> None:
    assert service.methods == ["retrack"]
    assert service.condition is None


def test_what_several_groups_are_worth_together_is_shown_once_computed(tmp_path: Path) -> None:
    service = Service(copy_run(tmp_path / "run").root)
    assert "guda shares" in shares_tables(service)
    steps.fit(service.run, ["posterior"], Inline())
    found = steps.shares(service.run, SET, steps.ShareOptions(pool=False), Inline())
    html = shares_tables(service)
    assert "guda shares" not in html
    assert all(row.name in html for row in found.rows)
    service.close()


def test_ends_at_the_bytes_of_the_command_line(service: Service, tmp_path: Path) -> None:
    other = copy_run(tmp_path / "other")
    name, note = service.take(grey(tmp_path / "a.png", seed=1))
    assert note == ""
    shots = list(service.answer(name, "top1@0.95"))
    folder = tmp_path / "pictures"
    folder.mkdir()
    (tmp_path / "a.png").rename(folder / f"{name}.png")
    assert steps.add_queries(other, folder, name) == name
    steps.score(other, name, ["retrack"], Inline(), stop="top1@0.95")
    ours, theirs = (steps.scores_path(r, name, "retrack", "top1@0.95") for r in (service.run, other))
    assert ours.read_bytes() == theirs.read_bytes()
    assert [s.final for s in shots] == [False] * (len(shots) - 1) + [True]
    np.testing.assert_array_equal(shots[-1].scores.score, Scores.read(ours).score)


def test_rounds_add_evaluations_and_narrow_intervals(service: Service, tmp_path: Path) -> None:
    name, _ = service.take(grey(tmp_path / "b.png", seed=2))
    shots = list(service.answer(name, "top2@0.999"))[:-1]
    assert len(shots) > 3
    evals = [s.evals for s in shots]
    assert evals == sorted(set(evals))
    widths = [s.scores.hi - s.scores.lo for s in shots if s.scores.lo is not None]  # type: ignore[operator]
    assert np.isnan(widths[0]).all()  # one round has no error
    stayed = ~shots[-1].left
    assert (widths[-1][0][stayed] < widths[1][0][stayed]).all()
    # evaluations by hand: per round, of 6 strata in pairs, the full model and each group still in
    rounds = shots[-1].rounds
    assert shots[-1].evals == 12 * (rounds.max() + rounds.sum())


def test_the_same_picture_is_found_and_not_computed(service: Service, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    name, _ = service.take(grey(tmp_path / "c.png", seed=3))
    first = list(service.answer(name))
    monkeypatch.setattr("guda.web.service.run_inline", lambda *a: pytest.fail("it was computed again"))
    again, _ = service.take(grey(tmp_path / "under-another-name.png", seed=3))
    assert again == name
    second = list(service.answer(name))
    assert [s.evals for s in second] == [s.evals for s in first]
    assert next(iter(results(service.run))).queries == name
    stored = open_result(service, name)
    np.testing.assert_array_equal(stored.scores.lo, first[-1].scores.lo)
    assert (stored.evals, stored.settled, stored.rule) == (first[-1].evals, first[-1].settled, "top1@0.95")
    np.testing.assert_array_equal(stored.rounds, first[-1].rounds)


def test_a_picture_that_was_scored_in_full_has_its_stored_verdict(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One verdict per picture: recognised by its pixels, whatever the file is called and the stop rule asks."""
    whole, queries = Scores.read(steps.scores_path(service.run, SET, "retrack")), load_queries(service.run, SET)
    before = service.run.query_sets()
    monkeypatch.setattr("guda.web.service.run_inline", lambda *a: pytest.fail("it was raced"))
    for q, rule in ((0, "top1@0.95"), (7, "budget=200")):
        Image.fromarray(queries.images[q, 0]).save(tmp_path / "renamed.png")
        job, note = service.ask(tmp_path / "renamed.png", rule=rule)
        [shot] = job.watch()
        assert note == f"Already scored as {SET}/{queries.ids[q]}; stored answer."
        assert (shot.queries, shot.picture, shot.rule, shot.final) == (SET, queries.ids[q], None, True)
        np.testing.assert_array_equal(shot.scores.score[0], whole.score[q])
        in_report = MethodView(whole, service.data.groups.sizes, "", service.floor("retrack", SET)).verdicts[q]
        assert service.view(shot).verdicts[0] == in_report
        assert "stored answer" in answer.answer(service, shot, note)[0]
        assert "stored answer" in line(service, "renamed.png", shot)[1]
        assert to_json(shot, service.view(shot))["verdict"]["note"] != RACED
    assert service.run.query_sets() == before


def test_another_picture_or_other_models_are_raced(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    service, queries = Service(run.root), load_queries(run, SET)
    pixels = queries.images[0].copy()
    assert stored_scores(service.run, "retrack", pixels, None) is not None
    assert stored_scores(service.run, "retrack", pixels, "a prompt") is None
    pixels[0, 0, 0] ^= 1
    assert stored_scores(service.run, "retrack", pixels, None) is None
    steps.change_scoring(run, rounds=3)  # the table is of two
    assert stored_scores(service.run, "retrack", queries.images[0], None) is None
    Image.fromarray(queries.images[0, 0]).save(tmp_path / "a.png")
    *_, shot = service.ask(tmp_path / "a.png", rule="budget=200")[0].watch()
    assert shot.rule == "budget=200"
    said = service.view(shot).verdicts[0]
    told = "" if said.kind in ("foreign", "copy") else RACED
    assert said.note == to_json(shot, service.view(shot))["verdict"]["note"] == told
    assert answer.answer(service, shot)[0].count(RACED) == (1 if told else 0)
    service.close()


def test_races_of_other_estimands_are_found_again(tmp_path: Path) -> None:
    """As `guda init` sets it: scores of another estimand lie in a folder of their own, and so do their races."""
    run = copy_run(tmp_path / "run")
    steps.change_scoring(run, estimand="path", excess=True, plan="stratified")
    service = Service(run.root)
    *_, shot = service.ask(grey(tmp_path / "f.png", seed=6))[0].watch()
    assert open_result(service, shot.queries).rule == "top1@0.95"
    assert [r.rule for r in results(service.run) if r.queries == shot.queries] == ["top1@0.95"]
    service.close()


def test_many_at_once_all_finish(service: Service, tmp_path: Path) -> None:
    names = [service.take(grey(tmp_path / f"{i}.png", seed=10 + i))[0] for i in range(4)]
    found: dict[int, str] = {}

    def ask(i: int) -> None:
        *_, last = service.answer(names[i % 4], "budget=200")
        found[i] = f"{last.queries} {last.final}"

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(600)
    assert found == {i: f"{names[i % 4]} True" for i in range(8)}
    assert not service._jobs


def test_a_full_queue_refuses(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Service(service.root, limits=Limits(max_mb=1, max_megapixels=1, queue=1, uploads=100))
    hold = threading.Event()
    monkeypatch.setattr("guda.web.service.run_inline", lambda *a: hold.wait(600))
    names = [small.take(grey(tmp_path / f"{i}.png", seed=20 + i))[0] for i in range(3)]
    jobs = [small.submit(n) for n in names[:2]]
    assert small.submit(names[0]) is jobs[0]  # the same question is the same job
    assert small.ahead(jobs[1]) == 1
    with pytest.raises(Refused, match="queue is full"):
        small.submit(names[2])
    hold.set()
    with pytest.raises(GudaError):  # nothing was computed, so there is nothing to read
        list(jobs[0].watch())
    small.close()


def test_what_is_refused_leaves_nothing_behind(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Service(service.root, limits=Limits(max_mb=1, max_megapixels=1, queue=1, uploads=100))
    hold = threading.Event()
    monkeypatch.setattr("guda.web.service.run_inline", lambda *a: hold.wait(600))
    paths = [str(grey(tmp_path / f"{i}.png", seed=30 + i)) for i in range(4)]
    before = small.run.query_sets()
    for rule, method in (("top1", None), ("budget=1", None), ("top9@0.9", None), ("top1@0.95", "logo")):
        with pytest.raises(GudaError):
            small.ask(paths[0], "", rule, method)
    assert small.run.query_sets() == before
    jobs = [small.ask(p)[0] for p in paths[:2]]
    with pytest.raises(Full, match="queue is full"):
        small.ask(paths[2])
    assert len(small.run.query_sets()) == len(before) + 2
    hold.set()
    for job in jobs:
        with pytest.raises(GudaError):
            list(job.watch())
    small.close()


def test_a_batch_waits_for_room_and_needs_no_page(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Service(service.root, limits=Limits(max_mb=1, max_megapixels=1, queue=1, uploads=100))
    hold = threading.Event()
    monkeypatch.setattr("guda.web.service.run_inline", lambda *a: hold.wait(600))
    paths = [grey(tmp_path / f"{i}.png", seed=40 + i) for i in range(4)]
    entries = [Entry(p.name, *small.receive(p, "", "retrack")) for p in paths]
    queries = load_queries(service.run, SET)
    Image.fromarray(queries.images[0, 0]).save(tmp_path / "known.png")
    entries.append(Entry("known.png", *small.receive(tmp_path / "known.png", "", "retrack")))  # scored in full
    entries.append(Entry("bad.png", None, GudaError("upload-empty", "bad.png is empty")))
    batch = Batch("top1@0.95", "retrack", entries)

    async def work() -> None:
        batches = Batches(small)
        assert batches.find(batches.start(batch)) is batch
        with pytest.raises(GudaError) as error:
            batches.find("../x")
        assert error.value.code == "batch-unknown"
        while batch.accepted < 4:  # two in the queue, two that need none
            await asyncio.sleep(0.01)
        html, done = progress(small, batch)
        assert not done
        assert html.count("<tr>") == 3  # its head, and the two that need no queue
        hold.set()
        while not progress(small, batch)[1]:
            await asyncio.sleep(0.01)
        assert batch.accepted == 6

    asyncio.run(work())
    html, _ = progress(small, batch)
    assert "All 6 done." in html
    assert "bad.png is empty" in html
    assert f"stored answer of {SET}/{queries.ids[0]}" in html
    small.close()


def test_a_run_keeps_so_many_uploads(tmp_path: Path) -> None:
    few = Service(copy_run(tmp_path / "run").root, limits=Limits(max_mb=1, max_megapixels=1, queue=1, uploads=1))
    name, _ = few.take(grey(tmp_path / "a.png", seed=1))
    assert few.take(grey(tmp_path / "again.png", seed=1))[0] == name
    with pytest.raises(Refused, match="--max-uploads"):
        few.take(grey(tmp_path / "b.png", seed=2))


def test_questions_that_cannot_be_put(service: Service) -> None:
    for rule, method in (("top1", None), ("budget=1", None), ("top9@0.9", None), ("top1@0.95", "logo")):
        with pytest.raises(GudaError):
            list(service.answer(SET, rule, method))
    with pytest.raises(GudaError, match="no stored result"):
        find(service.run, "../../etc")
    with pytest.raises(GudaError, match="no stored result"):
        find(service.run, SET, "retrack", "top3@0.9")


def test_runs_that_cannot_be_served(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    with pytest.raises(GudaError, match="oracle"):
        Service(run.root, "logo")
    steps.change_scoring(run, drift="subtract")
    with pytest.raises(GudaError, match="--drift keep"):
        Service(run.root)
    for path in run.path("artifacts").glob("retrack-*/*"):
        path.unlink()
    with pytest.raises(GudaError, match="no fitted method that can be raced"):
        Service(run.root)


def test_a_full_score_opens_picture_by_picture(service: Service) -> None:
    whole = Scores.read(steps.scores_path(service.run, SET, "retrack"))
    third = whole.queries[2]
    shot = open_result(service, SET, "retrack", "full", third)
    assert shot.picture == third
    assert shot.settled is None
    np.testing.assert_array_equal(shot.scores.score[0], whole.score[2])
    assert [str(g) for g in one_picture(whole, third)[third].ranked] == [str(g) for g in whole[third].ranked]
    html, _ = answer.answer(service, shot)
    assert "Scored with all rounds" in html
    for method in ("logo", "similarity-pixel"):  # an oracle of two seeds; no evaluations and no intervals
        assert "answer" in answer.answer(service, open_result(service, SET, method, "full"))[0]


def test_json_and_csv_say_the_same(service: Service, tmp_path: Path) -> None:
    name, _ = service.take(grey(tmp_path / "d.png", seed=4))
    *_, shot = service.answer(name)
    value = to_json(shot, service.view(shot))
    assert [g["rank"] for g in value["groups"]] == [1, 2, 3]
    assert value["verdict"]["kind"] in ("stands-out", "close", "nothing", "unmeasured")
    lines = to_csv(value).splitlines()
    assert lines[0] == "result,picture,method,rule,unit,group,rank,score,lo,hi,rounds,left_early"
    assert lines[1].split(",")[5:8] == [value["groups"][0]["group"], "1", repr(value["groups"][0]["score"])]


def test_the_answer_holds_its_axis_while_it_runs(service: Service, tmp_path: Path) -> None:
    name, _ = service.take(grey(tmp_path / "b.png", seed=2))
    shots = list(service.answer(name, "top2@0.999"))
    held = None
    for shot in shots:
        html, scale = answer.answer(service, shot, "a <b> note", held)
        assert "a &lt;b&gt; note" in html
        if held is not None and not shot.final:
            assert scale.lo <= held.lo
            assert scale.hi >= held.hi
        held = scale
        assert ("so far" in html) != shot.final
        assert ("Link to this result" in html) == shot.final
    assert html.count('alt="training image of') == 12
    assert f"result?result={name}&amp;method=retrack&amp;rule=top2%400.999" in html


def test_a_link_opens_what_it_stands_under(service: Service, tmp_path: Path) -> None:
    """A set scored in full and raced later: the older result keeps its own address."""
    list(service.answer(SET, "budget=200"))
    assert find(service.run, SET, "retrack").rule == "budget=200"  # the newest
    ids = service.run.query_ids(SET)
    for rule in (None, "budget=200"):
        shot = open_result(service, SET, "retrack", rule or "full", ids[1])
        asked = {k: v[0] for k, v in parse_qs(answer.link(shot).partition("?")[2]).items()}
        assert asked.pop("picture") == ids[1]
        stored = find(service.run, asked["result"], asked["method"], asked["rule"])
        assert stored.rule == rule
        assert answer.link(shot).startswith(stored.address + "&")


def test_how_groups_leave_is_told_by_the_rule(service: Service) -> None:
    list(service.answer(SET, "budget=200"))
    html, _ = answer.answer(service, open_result(service, SET, "retrack", "budget=200"))
    assert "The lower half of the groups is eliminated after each round" in html
    assert "clearly behind" not in html
    list(service.answer(SET, "top1@0.95"))
    pages = [answer.answer(service, open_result(service, SET, "retrack", "top1@0.95", p))[0]
             for p in service.run.query_ids(SET)]  # fmt: skip
    assert not any("lower half" in page for page in pages)


def test_the_placebo_sentence_is_three_way_and_says_of_which_pictures(tmp_path: Path) -> None:
    """Floors put below the whole interval, inside it, and above the first score."""
    service = Service(copy_run(tmp_path / "run").root)
    service.warm()
    name, _ = service.take(grey(tmp_path / "e.png", seed=5))
    *_, shot = service.answer(name, "top1@0.95")
    first = int(np.argmax(shot.scores.score[0]))
    score, lo = float(shot.scores.score[0, first]), float(shot.scores.lo[0, first])  # type: ignore[index]
    own = Scores.read(steps.scores_path(service.run, SET, "retrack"))
    path = steps.scores_path(service.run, SET, "retrack" + PLACEBO)
    floors = {score + 1: 0, (score + lo) / 2: 1, lo - 1: 2}
    for floor, says in floors.items():
        replace(own, method="retrack" + PLACEBO, score=np.full(own.score.shape, floor), lo=None, hi=None,
                stderr=None, ranks=None, rank_lo=None, rank_hi=None, p_first=None).write(path)  # fmt: skip
        os.utime(path, ns=(1, 1000 + says))  # a new file, however fast the clock
        html, _ = answer.answer(service, shot)
        said = re.search(r'class="placebo-says( below)?">([^<]*)<', html)
        assert said is not None
        assert said[2].partition(" (")[0] == PLACEBO_SAYS[says]
        assert bool(said[1]) == (says == 0)
        assert "placebo groups on the run&#39;s own pictures" in said[2]
    of_the_run, _ = answer.answer(service, open_result(service, SET, "retrack", "full"))
    assert "own pictures" not in of_the_run
    assert "(dashed line)" in of_the_run


def test_leaderboard_and_runs(service: Service, tmp_path: Path) -> None:
    board = leaderboard(service)
    assert "LOGO, one retraining (ceiling)" in board
    assert 'class="main"' in board
    bare = Run.open(copy_run(tmp_path / "bare").root)
    bare.path("scores", SET, "evaluation.json").unlink()
    assert "has not been compared with an oracle" in leaderboard(Service(bare.root))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    table = runs_table(tmp_path, bare.root)
    assert "bare (this one)" in table
    assert "cannot be opened" in table
    assert "retrack" in table


def test_the_gallery_and_what_an_answer_can_be_compared_with(service: Service, tmp_path: Path) -> None:
    name, _ = service.take(grey(tmp_path / "g.png", seed=50))
    *_, shot = service.answer(name, "budget=200")
    tiles, pages = gallery(service, 1)
    assert pages >= 1
    mine = next(t for t in tiles if t["href"] == answer.link(shot))
    assert mine["image"] == f"picture?set={name}&id={name}"
    assert mine["verdict"] == service.view(open_result(service, name)).verdicts[0]
    assert [t["value"] for t in tiles if t["verdict"] is None][:1] == ["12 pictures"]  # a set is one tile
    tiles, pages = set_gallery(service, SET, "retrack", "full", 1)
    assert (len(tiles), pages) == (12, 1)
    known = others(service, open_result(service, SET, "retrack", "full", service.run.query_ids(SET)[3]))
    assert {n for _, n in known["methods"]} >= {"logo", "similarity-pixel"}
    assert len(known["pictures"]) == 6
    for href, _ in known["methods"]:
        given = parse_qs(href.partition("?")[2])
        assert [parse_qs(given[side][0])["result"] for side in ("left", "right")] == [[SET], [SET]]


def test_evidence_is_gathered_once_and_shown(service: Service) -> None:
    shot = open_result(service, SET, "retrack", "full", service.run.query_ids(SET)[5])
    assert 'id="gather"' in evidence_section(service, shot)
    service.on_worker(lambda: gather(service, shot)).result(600)
    html = evidence_section(service, shot)
    assert 'id="gather"' not in html
    assert html.count("<img") == 6  # map, with, without, three nearest images
    assert evidence_section(service, open_result(service, SET, "similarity-pixel", "full")) == ""
