"""A run folder that was damaged, edited or mistaken for another: one clear line, and the way out it names works."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tinyrun import SET, Inline, copy_run, digits_folder, exact, finished_root, tiny, tree, write_digits

from guda import steps
from guda.data.images import ImageData
from guda.errors import GudaError, Mismatch
from guda.files import TEMPORARY, read_table, read_tensors, write_table, write_tensors
from guda.run.run import Run
from guda.unlearning.bank import Counterfactual


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def refused(message: str, kind: type[GudaError] = GudaError):
    return pytest.raises(kind, match=message)


def one_line(error: pytest.ExceptionInfo[GudaError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


# --- half-written and foreign files ---------------------------------------------------------------


def test_a_cut_part_is_named_and_deleting_it_repairs_the_run(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    part = cut(next(run.path("terms").rglob("r001.parquet")))
    with refused("is damaged .*delete it and run the command again") as error:
        steps.score(run, SET, ["logo", "retrack"], Inline())
    assert str(part) in one_line(error)
    part.unlink()
    engine = Inline()
    steps.pipeline(run, engine)
    assert len(engine.ran) == 1
    assert exact(run.root) == exact(finished_root())


def test_a_cut_counterfactual_is_never_used(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    file = cut(next(run.path("artifacts").glob("retrack-*/0001-1.safetensors")))
    with refused("other inputs"):  # its terms were computed with other bytes
        steps.score(run, SET, ["retrack"], Inline())
    shutil.rmtree(run.path("terms"))
    with refused("is damaged .*delete it") as error:
        steps.score(run, SET, ["retrack"], Inline())
    assert str(file) in one_line(error)
    file.unlink()
    with refused("retrack is not fitted .*guda fit"):
        steps.score(run, SET, ["retrack"], Inline())
    engine = Inline()
    steps.pipeline(run, engine)
    assert [n for n in engine.ran if n.startswith("fit")] == ["fit retrack without 1"]
    assert exact(run.root) == exact(finished_root())


def test_a_counterfactual_with_other_numbers_is_refused(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    file = next(run.path("artifacts").glob("retrack-*/0001-1.safetensors"))
    tensors, header = read_tensors(file)
    write_tensors(file, {k: v + 1 for k, v in tensors.items()}, header)
    with refused("other inputs"):
        steps.score(run, SET, ["retrack"], Inline())
    shutil.rmtree(run.path("terms"))
    with refused("digest", Mismatch):
        steps.score(run, SET, ["retrack"], Inline())


def test_a_delta_of_another_base_is_refused(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    file = next(run.path("artifacts").glob("retrack-*/0001-1.safetensors"))
    tensors, header = read_tensors(file)
    del header["digest"]
    Counterfactual(**header | {"base": "0" * 64}, tensors=tensors).save(file)
    shutil.rmtree(run.path("terms"))
    with refused("base model: found '0000", Mismatch):
        steps.score(run, SET, ["retrack"], Inline())


def test_a_part_of_another_model_is_refused(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    part = next(run.path("terms").rglob("base/r000.parquet"))
    table = read_table(part)
    write_table(part, table.replace_schema_metadata(table.schema.metadata | {b"model": b"another"}))
    with refused(r"\(model\): found 'another', given '[0-9a-f]+'; delete it", Mismatch) as error:
        steps.score(run, SET, ["retrack"], Inline())
    assert str(part) in one_line(error)


def test_replaced_weights_of_the_full_model_are_refused(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    file = next(run.path("models", "full-s0").rglob("*.safetensors"))
    tensors, header = read_tensors(file)
    write_tensors(file, {k: v + 1e-3 * torch.ones_like(v) for k, v in tensors.items()}, header)
    shutil.rmtree(run.path("terms"))
    with refused("digest of the weights: found '[0-9a-f]+', given '[0-9a-f]+'", Mismatch):
        steps.score(run, SET, ["retrack"], Inline())


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}', "[]", "half"])
def test_a_damaged_run_json_is_one_line_with_a_way_out_that_works(tmp_path: Path, text: str) -> None:
    run = copy_run(tmp_path / "run")
    if text == "half":
        cut(run.path("run.json"))
    else:
        run.path("run.json").write_text(text)
    before = tree(run.root)
    for attempt in (lambda: Run.open(run.root), lambda: steps.init(run.root, tiny(digits_folder()))):
        with refused("run.json is damaged; restore it, or start again in another folder") as error:
            attempt()
        one_line(error)
    assert tree(run.root) == before


def test_a_run_of_another_format_is_refused(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    run.path("run.json").write_text(json.dumps(run.info | {"format": 99}))
    with refused("format of the run: found 99, given 1", Mismatch):
        Run.open(run.root)


def test_changed_data_are_refused(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    index = run.path("data", "index.json")
    value = json.loads(index.read_text())
    index.write_text(json.dumps(value | {"digest": "0" * 64}))
    with refused(f"found '[0-9a-f]{{64}}', given '{'0' * 64}'", Mismatch):
        steps.status(run)
    index.write_text(json.dumps(value | {"ids": value["ids"][::-1]}))
    with refused("has changed since it was saved", Mismatch):
        steps.status(run)
    cut(index)
    with refused("index.json is damaged"):
        steps.status(run)


def test_whole_other_data_are_refused(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    known = ImageData.load(run.path("data"))
    shutil.rmtree(run.path("data"))
    ImageData(255 - known.images, known.ids, known.groups, known.name).save(run.path("data"))
    with refused("holds other images", Mismatch):
        steps.status(run)


def test_stray_temporary_files_are_ignored_and_swept(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    strays = []
    for folder in [run.root, *(p for p in run.root.rglob("*") if p.is_dir())]:
        strays += [folder / f"{TEMPORARY}0123456789ab-index.json", folder / f"{TEMPORARY}0123456789ab-r000.parquet"]
    for stray in strays:
        stray.write_text("half")
    half = run.path("models", f"{TEMPORARY}ab-full-s9")
    half.mkdir()
    (half / "guda.json").write_text("{")
    engine = Inline()
    steps.pipeline(run, engine)
    assert engine.ran == []
    assert run.query_sets() == [SET]
    assert list(steps.status(run)["queries"]) == [SET]
    run.sweep()
    assert all(s.exists() for s in [*strays, half])  # somebody may still be writing them
    run.sweep(older_than=0)
    assert not any(s.exists() for s in [*strays, half])
    assert exact(run.root) == exact(finished_root())


def test_an_init_that_was_killed_is_done_again(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    half = tmp_path / "half"
    shutil.copytree(run.path("data"), half / "data")
    cut(half / "data" / "images.safetensors")
    with refused("is not a run folder"):
        Run.open(half)
    again = steps.init(half, tiny(digits_folder()))
    assert again.info == run.info


# --- other inputs on the same folder --------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "change", "found", "given"),
    [
        ("training", {"steps": 41}, "training.steps differs: found 40", "given 41"),
        ("data", {"limit_per_group": 8}, "data.limit_per_group differs: found 16", "given 8"),
        ("model", {"options": {"width": 64, "depth": 1}}, "model.options.width differs: found 32", "given 64"),
        ("training", None, "found", "given None"),
    ],
)
def test_another_recipe_prints_both_values(tmp_path: Path, section: str, change, found: str, given: str) -> None:
    run = copy_run(tmp_path / "run")
    before = tree(run.root)
    other = tiny(digits_folder(), **{section: change})
    with refused(re.escape(found), Mismatch) as error:
        steps.init(run.root, other)
    assert given in one_line(error)
    assert tree(run.root) == before
    run.path("recipe.yaml").write_text(other.to_yaml())  # edited by hand
    with refused(re.escape(found), Mismatch) as error:
        Run.open(run.root)
    assert given in one_line(error)


def test_other_pictures_in_the_same_folder_are_refused(tmp_path: Path) -> None:
    source = write_digits(tmp_path / "digits", each=6)
    run = steps.init(tmp_path / "run", tiny(source))
    run.path("checkpoints", "full-s0").mkdir(parents=True)  # something depends on the images from here on
    before = tree(run.root)
    assert steps.init(run.root, tiny(source)).info == run.info  # the same again is fine
    (source / "0" / "extra.png").write_bytes(next((source / "1").iterdir()).read_bytes())
    with refused("data_digest differs: found '[0-9a-f]+', given '[0-9a-f]+'", Mismatch):
        steps.init(run.root, tiny(source))
    assert {k: v[1] for k, v in tree(run.root).items()} == {k: v[1] for k, v in before.items()}


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    for root, message in ((tmp_path, "is not a run folder"), (tmp_path / "mine.txt", "is a file"),
                          (tmp_path / "mine.txt" / "run", "is a file")):  # fmt: skip
        with refused(message) as error:
            steps.init(root, tiny(digits_folder()))
        one_line(error)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_what_cannot_be_scored_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    bad = [
        ({"scoring": {"strata": 1000}}, "scoring.strata = 1000"),
        ({"methods": {"retrack": {"stepz": 3}}}, r"methods\.retrack: stepz"),
        ({"methods": {"retrac": {}}}, "unknown method 'retrac'"),
        ({"model": {"scheduler": None}}, "model.scheduler is needed"),
        ({"model": {"options": {"breadth": 3}}}, "model.options"),
        ({"training": None}, "no model"),
    ]
    for sections, message in bad:
        with refused(message) as error:
            steps.init(tmp_path / "run", tiny(digits_folder(), **sections))
        one_line(error)
    assert list(tmp_path.iterdir()) == []
    run = copy_run(tmp_path / "run")
    before = tree(run.root)
    for sections, message in bad[:2]:
        with refused(message):
            steps.init(run.root, tiny(digits_folder(), **sections))
    assert tree(run.root) == before


# --- sections that may be edited ------------------------------------------------------------------


def test_edited_sections_make_new_artifacts_and_keep_the_old(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    before = exact(run.root)
    changed = tiny(
        digits_folder(),
        methods={"retrack": {"steps": 3, "batch_forget": 8, "batch_retain": 8}},
        queries={"n": 5, "seed": 3},
        scoring={"strata": 4},
    )
    run.path("recipe.yaml").write_text(changed.to_yaml())  # by hand, as the docs say
    run = Run.open(run.root)
    engine = Inline()
    entry = steps.pipeline(run, engine)
    assert entry.n_queries == 5
    assert not any(name.startswith("train") for name in engine.ran)
    after = exact(run.root)
    assert {k: after.get(k) for k in before} == before
    new = after.keys() - before.keys()
    assert sum(bool(re.match(r"artifacts/retrack-\w+/", k)) for k in new) == 3
    assert any(k.startswith("queries/samples-s3-n5") for k in new)
    assert len({k.split("/")[1] for k in after if k.startswith("terms/")}) == 2
    # and back again: everything is still there
    run.update(tiny(digits_folder()))
    engine = Inline()
    steps.pipeline(run, engine)
    assert engine.ran == []
    assert {k: exact(run.root)[k] for k in before} == before


def test_scores_of_older_settings_are_never_compared(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    first = steps.evaluate(run, SET)
    steps.change_settings(run, ["retrack"], ["steps=9", "lr=0.01"])
    with refused("no retrack scores of .* by the recipe's present settings; run: guda fit"):
        steps.evaluate(run, SET)
    steps.fit(run, ["retrack"], Inline())
    with refused("guda score"):
        steps.evaluate(run, SET)
    new = steps.score(run, SET, ["retrack"], Inline())["retrack"]
    second = steps.evaluate(run, SET)
    assert second.methods["retrack"].fit_evals != first.methods["retrack"].fit_evals
    run.update(tiny(digits_folder()))  # the old settings, whose terms are all there
    assert steps.evaluate(run, SET).methods["retrack"].metrics == first.methods["retrack"].metrics
    stored = steps.scores_path(run, SET, "retrack").read_bytes()
    assert stored == (finished_root() / "scores" / SET / "retrack.parquet").read_bytes()
    assert not np.array_equal(new.score, steps.score(run, SET, ["retrack"], Inline())["retrack"].score)
    run.update(tiny(digits_folder(), scoring={"rounds": 3}))
    with refused("compared with logo"):
        steps.evaluate(run, SET)


def test_times_are_booked_for_any_group_name(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    for name in ("a/b", "a_b", "x" * 250):
        run.record_time("fit/test", name, 1.5)
    assert run.seconds("fit/test") == 4.5
    assert run.seconds("fit/none") is None
