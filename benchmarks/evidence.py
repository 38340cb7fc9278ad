"""Do maps point at the right place, do they sum to the score, does a picture survive its inversion, how long is an
exhibit, where is the report's first answer, and do its links land?

    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/evidence.py [--run FOLDER]     resumes
    ... python benchmarks/evidence.py --page runs/demo      only the report of a run, in Chromium; keeps other figures

The run is the demo's recipe without retraining (path, excess). A composite is the left half of a training image of one
group beside the right half of one of another; its map of the left group should be larger on the left.

Figures of benchmarks/results/evidence.json; intervals .lo, .hi: bootstrap over pictures

map_auc.E.M              per-pixel area under the ROC curve of the map of each half's group for that half, both groups
                         of PICTURES composites, by method M and estimand E (path; elbo: the signed map); chance is .5
map_auc_contrast.E.M     the same of the difference of the two groups' maps (path: of logarithms), in which what all
                         maps share cancels
map_clear_share.E.M      share of cells above the noise floor
map_sum_error            largest relative difference of a map's sum from the plain score by the stored terms, SUMS
                         samples, all methods
inversion_psnr           dB, SUMS samples through the full model and back, BEST where all 8 bits of every pixel come
                         back; inversion_change: mean absolute change of a
                         pixel (0..255) without the first group
first_answer_px.W        from the top of the report to the lower end of its first answer, in a window W pixels wide
links_landing            share of the report's links whose target is seen within LANDS pixels of the top of the window,
                         at every width, in light and dark, each followed from the top of the page; links: how many at
                         each; links_worst_px: the worst
report_height_px.W       of the whole page; report_pages: of it printed
exhibit_pages            pages of the PDF; verify_terms, verify_bitwise: recomputed terms, and those with the same bits
"""

from __future__ import annotations

import argparse
import re
from itertools import product
from pathlib import Path

import numpy as np

from guda import steps
from guda.data.queries import Queries
from guda.diffusion.noise import generator
from guda.evaluation.intervals import bootstrap_mean
from guda.evaluation.results import DatasetEntry, write_results
from guda.files import read_json
from guda.methods.base import get_method
from guda.methods.elbo import ElboMethod, has_counterfactuals
from guda.methods.maps import map_tasks, picture_map
from guda.methods.terms import load_queries
from guda.report.bundle import write_bundle
from guda.report.content import Content
from guda.report.exhibit import Exhibit, choose_view, first_group
from guda.report.export import find_browser, write_pdf
from guda.report.verify import verify
from guda.run.data import load_data
from guda.run.recipe import Recipe, builtin_recipe
from guda.run.run import Run
from guda.run.task import pending
from guda.steps.evidence import gather_evidence
from guda.steps.fit import Engine
from report_links import landings

ROOT = Path(__file__).parents[1]
FILE = ROOT / "benchmarks" / "results" / "evidence.json"
METHODS = ("retrack", "shift", "posterior", "hybrid")
PICTURES, SUMS = 40, 10
BEST = 99.0  # dB
WINDOWS, LANDS = ((1280, 900), (390, 844)), 40  # pixels
Figures = dict[str, float]


def put(figures: Figures, name: str, values: list[float]) -> None:
    value = bootstrap_mean(np.array(values))
    figures |= {name: value.mean, f"{name}.lo": value.lo, f"{name}.hi": value.hi}


def prepared(folder: Path, engine: Engine) -> Run:
    if (folder / "run.json").is_file():
        run = Run.open(folder)
    else:
        value = builtin_recipe("digits").model_dump(mode="json") | {"evaluation": {}}
        value["methods"].pop("logo")
        run = steps.init(folder, Recipe.from_dict(value, "digits"))
    steps.fit(run, list(METHODS), engine)
    name = steps.sample(run, engine)
    if steps.scored_methods(run, name) == []:
        steps.score(run, name, list(METHODS), engine)
    return run


def with_models(run: Run, name: str) -> ElboMethod:
    found = get_method(run, name)
    assert has_counterfactuals(found)
    return found


def composites(run: Run) -> tuple[str, list[tuple[str, str]]]:
    """(name of the set, groups of the left and right half of each picture)."""
    data, images, pairs = load_data(run), [], []
    half = data.shape[2] // 2
    for i in range(PICTURES):
        rng = generator("composite", i)
        left, right = rng.choice(len(data.groups), 2, replace=False)
        one, two = (data.images[rng.choice(data.groups.members(k))] for k in (left, right))
        images.append(np.concatenate([one[:, :, :half], two[:, :, half:]], axis=2))
        pairs.append((data.groups.names[left], data.groups.names[right]))
    ids = [f"c{i:03d}" for i in range(PICTURES)]
    return steps.keep_queries(run, Queries.from_arrays(np.stack(images), ids, name="composites", layout="NCHW")), pairs


def auc(scores: np.ndarray, inside: np.ndarray) -> float:
    from scipy.stats import rankdata

    ranks, n = rankdata(scores.reshape(-1)), int(inside.sum())
    return float((ranks[inside.reshape(-1)].sum() - n * (n + 1) / 2) / (n * (inside.size - n)))


def places(run: Run, engine: Engine) -> Figures:
    figures: Figures = {}
    name, pairs = composites(run)
    queries = load_queries(run, name)
    left = np.zeros(queries.shape[1:], bool)
    left[:, : queries.shape[2] // 2] = True
    asked = list(zip(queries.ids, pairs, strict=True))
    for m, kind in product(METHODS, ("path", "elbo")):
        method, plain, contrast, clear = with_models(run, m), [], [], []
        tasks = [t for q, pair in asked for t in map_tasks(method, queries, q, pair, kind)]
        engine(run, pending(run, tasks), f"maps by {m}, {kind}")
        for q, pair in asked:
            one, two = (picture_map(method, queries, q, g, kind).whole for g in pair)
            plain.append((auc(one.nats, left) + auc(two.nats, ~left)) / 2)
            a, b = (m.nats if m.signed else np.log(m.nats + 1e-300) for m in (one, two))
            contrast.append(auc(a - b, left))
            clear.append(float(np.mean([one.clear.mean(), two.clear.mean()])))
        put(figures, f"map_auc.{kind}.{m}", plain)
        put(figures, f"map_auc_contrast.{kind}.{m}", contrast)
        figures[f"map_clear_share.{kind}.{m}"] = float(np.mean(clear))
    return figures


def sums(run: Run, engine: Engine) -> Figures:
    name = steps.choose_queries(run)
    queries = load_queries(run, name)
    some = queries.ids[:SUMS]
    worst, quality, change = 0.0, [], []
    for m in METHODS:
        method = with_models(run, m)
        plain = method.contributions(method.sets(), method.reader(queries)).mean(axis=0).sum(axis=-1)
        first = [method.groups[g] for g in plain[: len(some)].argmax(axis=1)]
        asked = list(zip(some, first, strict=True))
        engine(run, pending(run, [t for q, g in asked for t in map_tasks(method, queries, q, [g])]), f"maps by {m}")
        for q, (picture, group) in enumerate(asked):
            known = plain[q, method.groups.index(group)]
            worst = max(worst, abs(picture_map(method, queries, picture, group).whole.score / known - 1))
            if m == "shift":
                drawn = gather_evidence(run, name, picture, m, group, engine).drawn
                quality.append(min(drawn.psnr, BEST))
                change.append(float(np.abs(drawn.change).mean()))
    figures: Figures = {"map_sum_error": worst}
    put(figures, "inversion_psnr", quality)
    put(figures, "inversion_change", change)
    return figures


def filed(run: Run, engine: Engine) -> Figures:
    """The exhibit of the first picture for which one group stands out."""
    name = steps.choose_queries(run)
    content = Content.read(run, name)
    view = choose_view(content, "hybrid")
    clear = [q for q, v in zip(content.queries.ids, view.verdicts, strict=True) if v.kind == "stands-out"]
    picture = clear[0]
    evidence = gather_evidence(run, name, picture, view.id, first_group(view, picture), engine)
    found = Exhibit(content, view, evidence)
    page = run.path("exhibits", f"{picture}.html")
    page.parent.mkdir(exist_ok=True)
    page.write_text(found.html())
    pdf = write_pdf(page, page.with_suffix(".pdf"))
    checked = verify(write_bundle(page.with_suffix(".zip"), found.files()), run)
    assert checked.terms is not None
    return {
        "exhibit_pages": float(len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes()))),
        "verify_terms": float(checked.terms["recomputed"]), "verify_bitwise": float(checked.terms["bitwise"]),
    }  # fmt: skip


def looked_at(report: Path) -> Figures:
    """The report in a browser."""
    from playwright.sync_api import sync_playwright

    figures, offs = Figures(), [0.0]
    flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=flags)
        for (width, height), scheme in product(WINDOWS, ("light", "dark")):
            page = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme).new_page()
            page.set_default_timeout(300_000)  # machines are slow
            page.goto(report.as_uri())
            box = page.locator("#answers li").first.bounding_box()
            assert box is not None
            figures[f"first_answer_px.{width}"] = box["y"] + box["height"]
            figures[f"report_height_px.{width}"] = page.evaluate("document.documentElement.scrollHeight")
            found = landings(page)
            figures["links"] = float(len(found))
            offs += [abs(off) for off in found.values()]
            page.close()
        page = browser.new_page()
        page.goto(report.as_uri())
        figures["report_pages"] = float(len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4"))))
        browser.close()
    return figures | {"links_landing": float(np.mean(np.array(offs[1:]) <= LANDS)), "links_worst_px": max(offs)}


def kept() -> Figures:
    return dict(read_json(FILE)["datasets"]["digits"]["figures"]) if FILE.is_file() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=ROOT / "runs" / "evidence-digits")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--page", type=Path, help="only look at the report of this run, e.g. runs/demo")
    given = parser.parse_args()
    from guda.engine.loop import run_inline

    if given.page is not None:
        run = Run.open(given.page)
        figures = kept() | looked_at(run.path("report.html").resolve())
    else:
        engine: Engine = run_inline if given.workers == 1 else steps.local_engine(given.workers)
        run = prepared(given.run, engine)
        figures = kept() | sums(run, engine) | filed(run, engine) | places(run, engine)
    entry = DatasetEntry(
        n_queries=load_queries(run, steps.choose_queries(run)).n, n_groups=10, seeds=[], ceiling=None, methods={},
        figures=figures, note="see benchmarks/evidence.py",
    )  # fmt: skip
    write_results(FILE, "OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/evidence.py", {"digits": entry})
    for name, value in figures.items():
        print(f"{name:<28} {value:.4g}")


if __name__ == "__main__":
    main()
