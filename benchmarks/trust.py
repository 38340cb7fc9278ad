"""Are claims as right as they say? Intervals, foreign pictures, answer sets, held-out pictures of known groups.

    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/trust.py [--runs FOLDER] [--only digits ...]     resumes

digits        the demo's recipe with four LOGO seeds: coverage, foreign pictures, predictions of a left-out retraining,
              answer sets calibrated on 200 pictures and counted on the 300 reported ones
digits-held   150 images of every digit are trained on, the others are held-out real pictures of known groups
digits-random the digits' recipe, three LOGO seeds, but the ten groups are drawn at random: nothing can be attributed
fashion-mnist its recipe with three LOGO seeds: as digits, and 20 held-out real pictures of every group
fashion-small the same data and a small network (benchmarks/recipes), because retrainings of it are cheap: answers,
              predictions of a left-out retraining and held-out pictures
emoji         the run of emoji.py, which must be there: 20 objects that it has not seen, drawn in every style, under a
              prompt that names the object and no style; by path excess

Every data set is measured by itself, its entry is saved as soon as it is done, and finished work in its run folder
(FOLDER/<data set>) is kept; a run with fewer LOGO seeds gets the missing ones (`--seeds`: only these). The
entry of trust.json also goes, as tables, to benchmarks/results/trust.md and into docs/trust.md (trust_table.py).

Figures of benchmarks/results/trust.json; intervals .lo, .hi; E: elbo, path-excess (the presets' default)

coverage.E.P.R                   share of (picture, group) scores whose 95 % interval with R rounds of plan P, 6 strata,
                                 holds the mean of ROUNDS - R other rounds (wider by that mean's own error); retrack,
                                 PICTURES pictures; of path on the logarithmic scale, as excess scores are
foreign_caught, .KIND            share of foreign pictures that are called so; blurred and occluded samples, which the
                                 model may make, are apart: foreign_blurred, foreign_occluded
foreign_false                    the same of fresh samples of the model (another seed): false alarms
foreign_real                     the same of held-out real pictures
predictive_coverage.E            share of scores of a LOGO seed inside what the other three predict
answer_set_coverage.E.M, _size   share of reported pictures whose set holds retraining's first group (mean over seeds);
                                 its size
claims_99, claims_99_right.E.M   pictures whose answer set has one group at 99 %, and the share of them that retraining
                                 confirms; claims_p99_right: the same of p_first > .99, which counts scoring noise alone
stands_out.E.M, _right           pictures with verdict stands-out, and the share that retraining confirms
sanity.E.M, sanity_claims.E.M    held-out real pictures: own group first; own group first where one group stands out
sanity_claimed.E.M               share of them for which one does
attributable.E.A                 groups with answer A (attributable, pool, below_noise) by the first three LOGO seeds
attributable.E.reliability       mean over groups of the reliability of one retraining
trained.skill, trained.unlike    is the model trained enough: its skill on noised training images, and the share of its
                                 samples that are unlike the data (scoring/trained.py)
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from guda import steps
from guda.data.digits import load_digits_data
from guda.data.fashion import load_fashion
from guda.data.images import ImageData
from guda.data.queries import Queries
from guda.diffusion.noise import generator
from guda.evaluation.attributable import Answer, attributable
from guda.evaluation.intervals import Figure, bootstrap_mean, clopper_pearson
from guda.evaluation.results import DatasetEntry, keep_entry, read_results
from guda.methods.base import get_method
from guda.methods.elbo import has_counterfactuals
from guda.methods.terms import load_queries
from guda.methods.trained import trained
from guda.run.data import load_data, scored_groups
from guda.run.recipe import Recipe, builtin_recipe
from guda.run.run import Run
from guda.run.samples import collect_samples, sample_tasks
from guda.scoring.answer_set import covered
from guda.scoring.estimate import difference
from guda.scoring.training_noise import left_out_coverage
from guda.steps.fit import Engine
from path import random_groups, scoring, unseen
from trust_table import FILE, write_tables

ROOT = Path(__file__).parents[1]
COMMAND = "OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python benchmarks/trust.py"
SEEDS = {
    "digits": [1, 2, 3, 4],
    "digits-held": [1, 2],
    "digits-random": [1, 2, 3],
    "fashion-mnist": [1, 2, 3],
    "fashion-small": [1, 2, 3],
    "emoji": [1, 2, 3],
}
ESTIMANDS: dict[str, dict[str, Any]] = {
    "elbo": {"estimand": "elbo", "excess": False, "plan": "importance", "strata": 12, "rounds": 3},
    "path-excess": {"estimand": "path", "excess": True, "plan": "stratified", "strata": 6, "rounds": 6},  # the recipe's
}
METHODS = ("retrack", "shift", "posterior", "hybrid")
OF_TEXT = ("anchors-weighted", "continuation", "blend")
CHEAP = "similarity-pixel"  # evaluates no network: the foreign check is the same for every method
PICTURES, ROUNDS = 40, 48
EACH = 50  # foreign pictures of a kind
CALIBRATION = 200
KINDS = ("noise", "gradient", "letter", "photograph", "other-data", "inverted", "shuffled")
APART = ("blurred", "occluded")
ANSWERS: dict[Answer, str] = {"attributable": "attributable", "pool with others": "pool", "below noise": "below_noise"}
Figures = dict[str, float]


def put(figures: Figures, name: str, value: Figure) -> None:
    figures |= {name: value.mean, f"{name}.lo": value.lo, f"{name}.hi": value.hi}


def share(hits: np.ndarray) -> Figure:
    lo, hi = clopper_pearson(int(hits.sum()), len(hits))
    return Figure(mean=float(hits.mean()), lo=lo, hi=hi)


def recipe(root: Path, name: str) -> Recipe:
    if name == "digits-random":
        value = random_groups(root, name, 10).model_dump(mode="json")
    elif name == "fashion-small":
        value = Recipe.read(ROOT / "benchmarks" / "recipes" / f"{name}.yaml").model_dump(mode="json")
    elif name == "emoji":
        raise SystemExit(f"{root / name} is missing: python benchmarks/emoji.py --runs {root} makes it")
    else:
        value = builtin_recipe(name.removesuffix("-held")).model_dump(mode="json") | {"name": name}
    if name == "digits-held":
        value["data"]["limit_per_group"] = 150
    value["methods"]["logo"]["seeds"] = SEEDS[name]
    return Recipe.from_dict(value, name)


def prepared(root: Path, name: str, engine: Engine, unaided: Sequence[str] | None = None) -> Run:
    """The run with everything trained and fitted; what is there is kept, whatever made it. `unaided`: without
    LOGO, only these methods."""
    folder = root / name
    run = Run.open(folder) if (folder / "run.json").is_file() else steps.init(folder, recipe(root, name))
    there = run.recipe.settings("logo")["seeds"]
    if list(there) != SEEDS[name]:
        steps.update_settings(run, "logo", {"seeds": SEEDS[name]})
    if unaided is not None:
        steps.fit(run, unaided, engine)
        return run
    methods = {"digits-random": (), "emoji": OF_TEXT}.get(name, (*METHODS, CHEAP))
    for method in methods:
        if method not in run.recipe.methods:
            steps.update_settings(run, method, {})
    steps.fit(run, ["logo", *methods], engine)
    return run


# ---- coverage of scoring intervals
def coverage(run: Run, queries: str, engine: Engine) -> Figures:
    figures: Figures = {}
    every = load_queries(run, queries)
    few = Queries(every.ids[:PICTURES], every.images[:PICTURES], None, "coverage")
    name = steps.keep_queries(run, few)
    for plan in ("importance", "stratified"):
        for kind, settings in ESTIMANDS.items():
            # the intervals of plain scores: an excess adds the error of the average, which is the same in all rounds
            plain = {"plan": plan, "strata": 6, "rounds": ROUNDS, "estimand": settings["estimand"], "excess": False}
            with scoring(run, **plain):
                steps.score(run, name, ["retrack"], engine)
                found = get_method(run, "retrack")
                assert has_counterfactuals(found)
                d = found.contributions(found.sets(), found.reader(load_queries(run, name)))
            for rounds in (2, 3, 4, 6):
                more = np.sqrt(1 + rounds / (ROUNDS - rounds))
                inside = []
                for start in range(0, ROUNDS - rounds + 1, rounds):
                    chosen = np.arange(start, start + rounds)
                    truth = np.delete(d, chosen, axis=0).mean(axis=0).sum(axis=-1)
                    for g in range(d.shape[2]):
                        e = difference(d[chosen, :, g])
                        assert e.hi is not None
                        apart, reach = np.abs(truth[:, g] - e.score), more * (e.hi - e.score)
                        if kind == "path-excess":
                            apart, reach = np.abs(np.log(truth[:, g] / e.score)), reach / e.score
                        inside.append(apart <= reach)
                put(figures, f"coverage.{kind}.{plan}.{rounds}", bootstrap_mean(np.mean(inside, axis=0)))
    return figures


# ---- pictures that the model did not make
def foreign_pictures(samples: np.ndarray, kind: str) -> np.ndarray:
    """uint8 [EACH, C, H, W]."""
    rng = generator("foreign", kind)
    channels, height, width = samples.shape[1:]
    own = samples[rng.permutation(len(samples))[:EACH]]
    if kind == "noise":
        return rng.integers(0, 256, own.shape, np.uint8)
    if kind == "inverted":
        return 255 - own
    if kind == "shuffled":
        flat = own.reshape(len(own), -1)
        return np.stack([rng.permutation(row) for row in flat]).reshape(own.shape)
    if kind == "occluded":
        hidden = own.copy()
        for picture in hidden:
            y, x = rng.integers(0, height // 2, 2)
            picture[:, y : y + height // 2, x : x + width // 2] = 128
        return hidden
    if kind == "other-data":
        return _of_other_data(rng, samples.shape[1:])
    drawn = [_drawn(kind, rng, own[i], (width, height)) for i in range(EACH)]
    return np.repeat(np.stack(drawn)[:, None], channels, axis=1)


def _of_other_data(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Clothes for the model of 8x8 digits, digits for any other."""
    channels, height, width = shape
    every = (load_fashion() if height == 8 else load_digits_data()).images[:, 0]
    drawn = [Image.fromarray(every[i]) for i in rng.permutation(len(every))[:EACH]]
    resized = np.stack([np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)) for image in drawn])
    return np.repeat(resized[:, None], channels, axis=1)


def _drawn(kind: str, rng: np.random.Generator, own: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if kind == "gradient":
        y, x = np.mgrid[0 : size[1], 0 : size[0]] / max(size)
        slope = np.cos(angle := rng.uniform(0, 2 * np.pi)) * x + np.sin(angle) * y
        return np.uint8(255 * (slope - slope.min()) / np.ptp(slope))
    if kind == "letter":
        page = Image.new("L", (4 * size[0], 4 * size[1]))
        letter = "ABDEFGHJKMNPQRTUVWXY"[int(rng.integers(20))]
        ImageDraw.Draw(page).text((size[0], 0), letter, 255, ImageFont.load_default(3 * size[1]))
        return np.asarray(page.resize(size, Image.Resampling.BOX))
    if kind == "photograph":
        from sklearn.datasets import load_sample_images

        photo = load_sample_images().images[int(rng.integers(2))]
        y, x = rng.integers(0, photo.shape[0] - 64), rng.integers(0, photo.shape[1] - 64)
        return np.asarray(Image.fromarray(photo[y : y + 64, x : x + 64]).convert("L").resize(size))
    assert kind == "blurred"
    return np.asarray(Image.fromarray(own[0]).filter(ImageFilter.GaussianBlur(1)))


def foreign(run: Run, queries: str, engine: Engine) -> Figures:
    figures: Figures = {}
    samples = load_queries(run, queries).images

    def called(pictures: Queries) -> np.ndarray:
        name = steps.keep_queries(run, pictures)
        scores = steps.score(run, name, [CHEAP], engine)[CHEAP]
        assert scores.origins is not None
        return np.array([o.foreign for o in scores.origins])

    with scoring(run, **ESTIMANDS["path-excess"]):
        every = []
        for kind in (*KINDS, *APART):
            images = foreign_pictures(samples, kind)
            ids = tuple(f"{kind}-{i:03d}" for i in range(len(images)))
            hits = called(Queries(ids, images, None, f"foreign-{kind}"))
            put(figures, f"foreign_caught.{kind}" if kind in KINDS else f"foreign_{kind}", share(hits))
            every += [hits] if kind in KINDS else []
        put(figures, "foreign_caught", share(np.concatenate(every)))
        config = run.recipe.queries.model_copy(update={"seed": 77, "n": 300})
        engine(run, sample_tasks(run, config), "fresh samples")
        fresh = load_queries(run, collect_samples(run, config))
        put(figures, "foreign_false", share(called(Queries(fresh.ids, fresh.images, None, "fresh"))))
    return figures


# ---- answers against retraining
def retrained(run: Run, queries: str, engine: Engine) -> np.ndarray:
    """Scores of every LOGO seed by the run's present estimand, [seeds, Q, G]."""
    steps.score(run, queries, ["logo"], engine)
    oracle = get_method(run, "logo")
    assert has_counterfactuals(oracle)
    every = oracle.all_scores(load_queries(run, queries))
    return np.stack([every[f"logo-s{s}"].score for s in oracle.seed_sets()])


def groups_by_answer(figures: Figures, kind: str, groups: Sequence[str], gold: np.ndarray) -> None:
    """Of three retrainings, however many there are, so that data sets compare."""
    found = attributable(groups, gold[:3])
    figures |= {f"attributable.{kind}.{name}": float(found.count(answer)) for answer, name in ANSWERS.items()}
    figures[f"attributable.{kind}.reliability"] = float(np.mean([g.one.mean for g in found.groups if g.one]))


def random_partition(run: Run, queries: str, engine: Engine) -> Figures:
    figures: Figures = {}
    for kind, settings in ESTIMANDS.items():
        with scoring(run, **settings):
            groups_by_answer(figures, kind, scored_groups(run), retrained(run, queries, engine))
    return figures


def answers(run: Run, queries: str, engine: Engine) -> Figures:
    figures: Figures = {}
    for kind, settings in ESTIMANDS.items():
        with scoring(run, **settings):
            gold = retrained(run, queries, engine)
            groups_by_answer(figures, kind, scored_groups(run), gold)
            if len(gold) >= 3:
                put(figures, f"predictive_coverage.{kind}", bootstrap_mean(left_out_coverage(gold)))
            for level, claims in ((0.99, "claims_99"), (0.95, "answer_set")):
                steps.calibrate(run, engine, METHODS, CALIBRATION, level)
                for m, scores in steps.score(run, queries, list(METHODS), engine).items():
                    assert scores.answer is not None
                    sets, name = scores.answer > 0, f"{kind}.{m}"
                    right = (gold.argmax(axis=2) == scores.score.argmax(axis=1)).mean(axis=0)
                    if claims == "claims_99":
                        _claims(figures, claims, name, sets.sum(axis=1) == 1, right)
                        continue
                    put(figures, f"{claims}_coverage.{name}", bootstrap_mean(covered(sets, gold)))
                    put(figures, f"{claims}_size.{name}", bootstrap_mean(sets.sum(axis=1).astype(float)))
                    assert scores.p_first is not None
                    _claims(figures, "claims_p99", name, scores.p_first.max(axis=1) > 0.99, right)
                    clear = np.array([v.kind == "stands-out" for v in scores.verdict().values()])
                    _claims(figures, "stands_out", name, clear, right)
    return figures


def _claims(figures: Figures, claim: str, name: str, made: np.ndarray, right: np.ndarray) -> None:
    """How many pictures have the claim, and how often retraining confirms it."""
    figures[f"{claim}.{name}"] = float(made.mean())
    if made.sum() > 1:
        put(figures, f"{claim}_right.{name}", bootstrap_mean(right[made]))


# ---- held-out real pictures of known groups
def held_out_folder(run: Run, folder: Path, every: ImageData, each: int) -> Path:
    """DIR/<group>/*.png of pictures that were not trained on."""
    pictures = unseen(load_data(run), every, each)
    for name, image in zip(pictures.ids, pictures.images, strict=True):
        group, _, number = name.rpartition(" ")
        if not (file := folder / group / f"{number}.png").is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0]).save(file)
    return folder


def held_out_emoji(run: Run, folder: Path, each: int) -> Path:
    """The same objects in every style, with prompts that name no style."""
    from guda_sources.emoji import load_emoji

    known, every = load_data(run), load_emoji(run.recipe.data.size)
    assert known.contents is not None
    assert every.contents is not None
    new = sorted(set(every.contents) - set(known.contents))
    chosen = {new[i] for i in generator("held-out objects").permutation(len(new))[:each]}
    prompts = []
    for group in known.groups.names:
        (folder / group).mkdir(parents=True, exist_ok=True)
        for i in every.groups.members(every.groups.index(group)):
            if (content := every.contents[i]) in chosen:
                file = f"{group}/{content.replace(' ', '-')}.png"
                Image.fromarray(every.images[i].transpose(1, 2, 0)).save(folder / file)
                prompts.append(json.dumps({"file_name": file, "prompt": f"An artwork of {content}"}))
    (folder / "prompts.jsonl").write_text("\n".join(prompts) + "\n")
    return folder


def held_out(
    run: Run, folder: Path, engine: Engine, methods: Sequence[str] = METHODS, kinds: Sequence[str] = tuple(ESTIMANDS)
) -> Figures:
    figures: Figures = {}
    for kind in kinds:
        with scoring(run, **ESTIMANDS[kind]):
            steps.calibrate(run, engine, methods, CALIBRATION)
            found = steps.sanity(run, folder, engine, list(methods))
            for m, row in found.methods.items():
                for name, right in (("sanity", row.first), ("sanity_claims", row.stands_out)):
                    if right.n:
                        hits = np.arange(right.n) < right.right
                        put(figures, f"{name}.{kind}.{m}", share(hits))
                figures[f"sanity_claimed.{kind}.{m}"] = row.stands_out.n / row.first.n
            scores = steps.score(run, found.queries, [methods[0]], engine)[methods[0]]
            if scores.origins is not None:
                put(figures, "foreign_real", share(np.array([o.foreign for o in scores.origins])))
    return figures


def unaided(run: Run, name: str, engine: Engine, covered: bool) -> Figures:
    """What needs no retraining: foreign pictures and, if `covered`, scoring intervals."""
    queries = steps.sample(run, engine)
    figures = {} if name == "digits-held" else foreign(run, queries, engine)
    if covered and name != "digits-held":
        figures |= coverage(run, queries, engine)
    if name != "digits":
        every = load_digits_data() if name == "digits-held" else load_fashion(run.recipe.data.size)
        pictures = unseen(load_data(run), every, len(every.ids) if name == "digits-held" else 20)
        kept = steps.keep_queries(run, Queries(pictures.ids, pictures.images, None, "held-out"))
        with scoring(run, **ESTIMANDS["path-excess"]):
            origins = steps.score(run, kept, [CHEAP], engine)[CHEAP].origins
        assert origins is not None
        put(figures, "foreign_real", share(np.array([o.foreign for o in origins])))
    return figures


def measure(run: Run, name: str, root: Path, engine: Engine) -> DatasetEntry:
    queries = steps.sample(run, engine)
    if name == "digits-random":
        figures = random_partition(run, queries, engine)
    elif name == "digits-held":
        every = load_digits_data()
        figures = held_out(run, held_out_folder(run, root / "digits-held-out", every, len(every.ids)), engine)
    elif name == "emoji":
        folder = held_out_emoji(run, root / "emoji-held-out", 20)
        figures = held_out(run, folder, engine, OF_TEXT, ["path-excess"])
    elif name == "fashion-small":
        every = load_fashion(run.recipe.data.size)
        figures = answers(run, queries, engine)
        figures |= held_out(run, held_out_folder(run, root / "fashion-small-held-out", every, 20), engine)
    else:
        figures = foreign(run, queries, engine) | answers(run, queries, engine) | coverage(run, queries, engine)
        if name == "fashion-mnist":
            every = load_fashion(run.recipe.data.size)
            figures |= held_out(run, held_out_folder(run, root / "fashion-mnist-held-out", every, 20), engine)
    learned = trained(run)
    # of text models it is not asked
    known = {} if learned is None else {"trained.skill": learned.skill, "trained.unlike": learned.unlike}
    figures |= {n: value for n, value in known.items() if value is not None}
    return DatasetEntry(
        n_queries=load_queries(run, queries).n, n_groups=len(scored_groups(run)),
        seeds=list(get_method(run, "logo").config.seeds), ceiling=None, methods={}, figures=figures,
        note="see benchmarks/trust.py",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "path")
    parser.add_argument("--only", nargs="*", choices=list(SEEDS), default=list(SEEDS))
    parser.add_argument("--seeds", nargs="*", type=int, help="LOGO seeds to measure with; default: all of the data set")
    parser.add_argument("--unaided", action="store_true", help="only what needs no retraining; other figures are kept")
    parser.add_argument("--foreign", action="store_true", help="only foreign pictures; other figures are kept")
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    SEEDS.update(dict.fromkeys(given.only, given.seeds) if given.seeds else {})
    engine = steps.local_engine(given.workers)
    for name in given.only:
        if given.unaided or given.foreign:
            run = prepared(given.runs, name, engine, [CHEAP] if given.foreign else ["retrack", CHEAP])
            before = read_results(FILE).datasets[name]
            found = unaided(run, name, engine, covered=not given.foreign)
            entry = before.model_copy(update={"figures": before.figures | found})
        else:
            entry = measure(prepared(given.runs, name, engine), name, given.runs, engine)
        write_tables(keep_entry(FILE, COMMAND, name, entry, SEEDS))
        print(name, "done", flush=True)


if __name__ == "__main__":
    main()
