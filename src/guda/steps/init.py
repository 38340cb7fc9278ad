"""Making a run, looking at it, and changing what may be changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guda.config import parse_config
from guda.data.images import ImageData
from guda.data.sources import SOURCES, load_source, load_test_split
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import build_denoiser, takes_any_size
from guda.diffusion.validation import DRAWS
from guda.errors import GudaError
from guda.files import atomic_folder
from guda.methods.base import METHODS, get_method, make_method
from guda.methods.logo import LogoConfig, check_seeds
from guda.run.data import TEST, load_data
from guda.run.models import full_name, model_options, need_training
from guda.run.recipe import Recipe
from guda.run.run import Run, local_folder, writable
from guda.run.status import remember, run_status
from guda.scoring.plan import make_plan, prior_density
from guda.steps.fit import base_tasks
from guda.steps.score import scores_folder


def init(
    root: str | Path,
    recipe: Recipe,
    keep_edits: bool = False,
    data: ImageData | None = None,
    model: Denoiser | None = None,
    resize: Callable[[Recipe, ImageData], Recipe] | None = None,
) -> Run:
    """Make a run folder, or reopen the same one. Checks everything first: on an error nothing is written.

    On an existing run the recipe's editable sections replace the run's, unless `keep_edits`; where nothing depends on
    the others yet, so do they, and the images are read again. `data`, `model`: what the recipe names, where it is in
    memory already; a model is saved to `model.path` if nothing is there. `resize` may change the `training` section
    of a new run once the images are known (steps/sizing.py)."""
    address, root, recipe = root, local_folder(root), _sized(_absolute(recipe))
    for name in recipe.methods:
        if name not in METHODS:
            raise GudaError(
                "method-unknown",
                f"the recipe names an unknown method {name!r}; known: {', '.join(sorted(METHODS))}",
            )
        config = parse_config(METHODS[name].Config, recipe.methods[name], f"methods.{name}")
        if isinstance(config, LogoConfig) and recipe.training is not None and recipe.model.path is None:
            check_seeds(config, recipe.training.seed)  # before hours of training, not after
        for half in (config.tuned, config.rule) if hasattr(config, "tuned") else ():  # a hybrid's methods
            if half not in METHODS:
                raise GudaError(
                    "method-unknown",
                    f"methods.{name}: unknown method {half!r}; known: {', '.join(sorted(METHODS))}",
                )
    if root.exists() and not root.is_dir():
        raise GudaError("path-is-file", f"{root} is a file; choose another name for the run folder")
    again = Run.exists(root)
    if again and Run.read(address).made() is not None:
        Run.open(address).check(recipe)  # the cheap refusal first
    elif again:  # nothing depends on it yet
        again = Run.read(address).same_lock(recipe) and resize is None
    elif root.exists() and any(p.name not in ("data", "recipe.yaml") and p.name[0] != "." for p in root.iterdir()):
        raise GudaError("run-folder-taken", f"{root} exists and is not a run folder; choose another name")
    writable(root)
    held_out: ImageData | None = None
    if data is None:
        options = recipe.data.model_dump()
        data = load_source(options.pop("source"), **options)
        if recipe.training is not None and not again:
            held_out = load_test_split(recipe.data, -(-DRAWS // len(data.groups)))
    data.groups.check_rest()
    if recipe.prompts is not None:
        _ = data.groups.labels  # refused where images are in several groups: a prompt has one style
    data.groups.check_apart([data.groups.index(name) for name in recipe.scoring.groups or ()])
    model = _check_model(recipe, data, model)
    schedule = (model or build_denoiser(recipe.model, data.shape)).schedule
    lock = {"data_digest": data.digest, "groups": dict(zip(data.groups.names, data.groups.sizes, strict=True)),
            "model": None, "schedule": schedule.digest}  # fmt: skip
    if model is not None:
        lock["model" if recipe.model.path is not None else "start"] = model.digest()
        lock |= {} if model.frozen is None else {"frozen": model.frozen.digest()}
    make_plan(schedule, recipe.scoring, prior_density(schedule))
    if resize is not None and not again:
        recipe = resize(recipe, data)
    if again and (run := Run.open(address)).made() is None and data.digest != run.info["data_digest"]:
        again = False  # the folder's images have changed since
    if again:
        run = Run.open(address)
        run.check_lock(lock)
        if not keep_edits:
            run.update(recipe)
        return run
    with _all_or_nothing(root):
        if model is not None:
            _save_model(model, recipe, root)
        data.save(root / "data")
        shutil.rmtree(root.joinpath(*TEST), ignore_errors=True)  # of other images that were here before
        if held_out is not None and held_out.shape == data.shape:
            held_out.save(root.joinpath(*TEST))
        return Run.create(address, recipe, lock)


@contextmanager
def _all_or_nothing(root: Path) -> Iterator[None]:
    """On an error (a full disk), remove what was added to the folder; a folder that was not there, altogether."""
    there = root.exists()
    before = {p.name for p in root.iterdir()} if there else set()
    try:
        yield
    except Exception:
        for path in [p for p in root.iterdir() if p.name not in before] if root.exists() else []:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        if not there and root.exists():
            root.rmdir()
        raise


def applicable(run: Run) -> list[str]:
    """The methods with scores that are defined for the run's kind of model and its groups, oracles aside; with the
    recipe's settings where it has some."""
    found = []
    for name, cls in METHODS.items():
        if cls.oracle or not cls.ranks_groups or not cls.scored:
            continue
        try:
            make_method(run, name, run.recipe.settings(name)).check()
        except GudaError:
            continue
        found.append(name)
    return found


FALLBACK = ("anchors-weighted", "continuation")  # of a preset whose own operator is not defined for the run


def suit_methods(run: Run) -> None:
    """Replace what a preset's methods cannot do: it is written before the kind of model and its groups are known."""
    possible, given = applicable(run), run.recipe.methods
    kept = {name: settings for name, settings in given.items() if name in possible}
    other = next((name for name in FALLBACK if name in possible), None)
    if len(kept) < len(given) and other is not None:
        run.update(run.recipe.model_copy(update={"methods": {other: run.recipe.settings(other)} | kept}))


def _absolute(recipe: Recipe) -> Recipe:
    """Folders by their full path, so that the run works from any directory."""
    value = recipe.model_dump(mode="json")
    for section, key in (
        ("data", "source"), ("model", "path"), ("model", "start"), ("model", "scheduler"), ("model", "lora"),
        ("prompts", "path"), ("prompts", "encoder"), ("prompts", "model"),
    ):  # fmt: skip
        given = (value[section] or {}).get(key) or ""
        clip = "clip:" if key == "encoder" else ""
        text = given.removeprefix(clip) if given.startswith(clip) else ""  # `statistics` is no folder
        if text and text not in SOURCES and Path(text).expanduser().exists():
            value[section][key] = f"{clip}{Path(text).expanduser().resolve()}"
    for settings in value["methods"].values():
        for key in ("model", "encoder"):
            if isinstance(given := settings.get(key), str):
                clip, text = ("clip:", given[5:]) if given.startswith("clip:") else ("", given)
                if text.startswith((".", "~", "/")) or Path(text).is_dir():
                    settings[key] = f"{clip}{Path(text).expanduser().resolve()}"
    return Recipe.from_dict(value, "the recipe")


def _sized(recipe: Recipe) -> Recipe:
    """A network that takes pictures of any size takes those of the data (`data.size`), unless the recipe says."""
    path = recipe.model.path or recipe.model.start
    if path is None or recipe.model.size is not None or recipe.data.size is None or not takes_any_size(path):
        return recipe
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"size": recipe.data.size})})


def _save_model(model: Denoiser, recipe: Recipe, root: Path) -> None:
    """A model that was given as an object; one from the Hub has no such folder either, and needs none."""
    if (target := Path(str(recipe.model.path))).is_relative_to(root.resolve()):
        with atomic_folder(target) as tmp:
            model.save_pretrained(tmp)


def _check_model(recipe: Recipe, data: ImageData, given: Denoiser | None = None) -> Denoiser | None:
    if recipe.model.path is not None and recipe.model.start is not None:
        raise GudaError(
            "model-start-conflict", "model.path is a finished model and model.start one to fine-tune; give one of them"
        )
    if recipe.model.path is None and recipe.training is None:
        raise GudaError(
            "model-not-given", "no model: give --model FOLDER, or a recipe with a `training` section for `guda train`"
        )
    if recipe.training is not None and recipe.training.lora is not None and recipe.model.start is None:
        if recipe.model.lora is not None:
            raise GudaError(
                "lora-already-there", "model.lora is what is retrained, in its own rank; remove training.lora"
            )
        raise GudaError(
            "lora-start-missing", "training.lora adapts a pretrained model: give model.start, or remove training.lora"
        )
    if (path := recipe.model.path or recipe.model.start) is None:
        if recipe.model.lora is not None:
            raise GudaError(
                "lora-base-missing", "model.lora is added to a given pipeline; give model.path or model.start too"
            )
        model = build_denoiser(recipe.model, data.shape)
        _check_prompts(recipe, model, data)
        _try(model, "model.options")
        return None
    model = given or Denoiser.from_pretrained(path, recipe.model.scheduler, **model_options(recipe.model))
    _check_prompts(recipe, model, data)
    if model.image_shape != data.shape:
        (c, h, w), (dc, dh, dw) = model.image_shape, data.shape
        fix = f"give --size {h}" if (dh, dw) != (h, w) else f"the model wants {c} channel(s), the images have {dc}"
        raise GudaError(
            "image-shape-mismatch",
            f"the model takes {w}x{h} images of {c} channel(s), the data are {dw}x{dh} of {dc}; {fix}",
        )
    _try(model, path)
    return model


def _check_prompts(recipe: Recipe, model: Denoiser, data: ImageData) -> None:
    """Prompts are for text-to-image models, are made of what the images show, and training needs them."""
    if recipe.prompts is not None and model.frozen is None:
        raise GudaError(
            "prompts-section-unexpected",
            f"the recipe has a `prompts` section, but the model is {model.kind}; remove the section",
        )
    if recipe.prompts is not None and data.contents is None:
        raise GudaError(
            "contents-missing",
            "prompts name what each image shows: give data.content_by, e.g. level:2 for style/object/*.jpg folders",
        )
    if recipe.prompts is None and model.frozen is not None and recipe.training is not None:
        raise GudaError(
            "contents-missing",
            "the model is text-to-image: say what the images show, e.g. --content-by level:2 for STYLE/OBJECT/*.jpg, "
            "or give a recipe with a `prompts` section",
        )


def _try(model: Denoiser, where: str) -> None:
    """One image through the network: a U-Net cannot halve every size as often as it has levels."""
    import torch

    if model.n_classes is not None:
        return
    try:
        with torch.inference_mode():
            cond = None if model.frozen is None else model.condition([""])
            model.raw(torch.zeros(1, *model.shape), torch.zeros(1, dtype=torch.long), cond)
    except RuntimeError as e:
        size = "x".join(str(n) for n in model.shape[1:])
        reason = str(e).splitlines()[0]
        raise GudaError(
            "image-size-unsupported",
            f"{where}: the network cannot run on {size} images ({reason}); give another --size",
        ) from None
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as e:
        raise GudaError(
            "model-cannot-run",
            f"{where}: the network cannot run ({type(e).__name__}: {e}); correct the value in its config.json",
        ) from None


def status(run: Run) -> dict[str, Any]:
    """What is done and what is left, as plain JSON; the list of files is kept for the next time (run/status.py)."""
    data = load_data(run)
    names = [m for m in run.recipe.methods if run.recipe.training or m not in METHODS or not METHODS[m].trains]
    methods = {}
    for name in names:
        tasks = [t for t in get_method(run, name).fit() if t.stage.partition("/")[0] != "train"]
        methods[name] = [list(t.makes) for t in tasks]
    base = run.recipe.model.path or full_name(need_training(run).seed)
    listing = {
        "images": data.n,
        "left_out": data.left_out,
        "groups": dict(zip(data.groups.names, data.groups.sizes, strict=True)),
        "model": [base, [list(t.makes) for t in base_tasks(run)]],
        "methods": methods,
        "ranked": [m for m in METHODS if METHODS[m].ranks_groups],
        "scores": str(scores_folder(run, "x").relative_to(run.path("scores", "x"))),
    }
    remember(run, listing)
    return run_status(run, listing)
