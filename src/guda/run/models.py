"""The full models of a run: the model under study, and those that its LOGO seeds are compared with.

`base` is the run's model (given, or trained with the recipe's seed); `full-s<seed>` are full models trained here;
`start` is the pretrained model that they are fine-tuned from, where the recipe names one;
`conditional-s<seed>` is conditioned on the group of every image, or on a null label after the last group, for
operators that need it.

Latents of the run's images and embeddings of its prompts are computed once and cached:

    RUN/cache/latents-<frozen part + images>[-mirrored].safetensors
    RUN/cache/prompts-<frozen part>-<texts>.safetensors        every text once

A VAE takes longer over 24,000 pictures than a hundred training steps, and every LOGO model and every unlearning sees
the same latents. Files are memory-mapped, so that processes share them. Models without a VAE need no latents kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from guda.config import ModelConfig, TrainingConfig
from guda.data.classes import Classes, class_numbers
from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.data.prompts import Prompts
from guda.diffusion import distributed
from guda.diffusion.denoiser import Denoiser, Latents, default_device, encode_all
from guda.diffusion.loading import OPTIONS, build_denoiser, make_scheduler
from guda.diffusion.lora import adapted
from guda.diffusion.schedule import FlowSchedule, Schedule
from guda.errors import GudaError, Mismatch
from guda.files import (
    TEMPORARY,
    atomic_folder,
    digest,
    read_json,
    read_tensors,
    remove_folder,
    write_json,
    write_tensors,
)
from guda.parts import FolderParts
from guda.run.data import held_out_images, load_data, load_prompts, prompt_files
from guda.run.run import Run
from guda.run.sketch import Sketch
from guda.run.task import Task, tick

if TYPE_CHECKING:
    from guda.diffusion.preview import Preview
    from guda.diffusion.training import Trained


def cached_latents(run: Run, denoiser: Denoiser, data: ImageData, flips: bool = False) -> Latents:
    """x_0 of the training images, and of their mirror images where `flips` are drawn."""
    frozen = denoiser.frozen
    if frozen is None or not frozen.cache_latents:
        return encode_all(denoiser, data.images, flips)
    name = f"latents-{digest([frozen.digest(), data.digest])}"
    header = {"frozen": frozen.digest(), "data": data.digest}

    def kept(end: str, images: Callable[[], np.ndarray]) -> torch.Tensor:
        path = run.path("cache", f"{name}{end}.safetensors")
        return _kept(path, header | {"what": f"latents{end}"}, lambda: {"x0": denoiser.encode(images())})["x0"]

    x0 = kept("", lambda: data.images)
    return Latents(x0, kept("-mirrored", lambda: data.images[..., ::-1]) if flips else None)


def cached_conditions(run: Run, denoiser: Denoiser, prompts: Sequence[str] | None) -> None:
    """From here on `denoiser.condition` reads these prompts from the run's file instead of asking the text encoder."""
    frozen = denoiser.frozen
    if prompts is None or frozen is None:
        return
    texts = sorted({"", *prompts})
    if frozen.remembers(texts):
        return
    path = run.path("cache", f"prompts-{digest(frozen.digest())}-{digest(texts)}.safetensors")
    header = {"frozen": frozen.digest(), "texts": digest(texts, 64), "what": "prompts"}
    frozen.remember(texts, _kept(path, header, lambda: frozen.embed(texts)))


def _kept(path: Path, header: dict[str, str], make: Callable[[], dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The tensors of a file. If it does not exist, one process creates it while the others wait."""
    if not path.is_file():
        with _alone(path):
            if not path.is_file():
                write_tensors(path, make(), header)
    tensors: dict[str, torch.Tensor] = FolderParts(path.parent).read(path.name, header, "cache-stale")
    return tensors


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """A lock that dies with its process. Where the system has none the work is done twice, to the same bytes."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    lock = path.parent / f"{TEMPORARY}lock-{path.name}"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as f:
        with suppress(OSError):  # some network file systems
            fcntl.flock(f, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


LABEL_DROPOUT = 0.1  # share of images that the conditional model sees under the null label

GIVEN = {"base": "model", "start": "start"}  # models that were not made here -> where run.json has their digest

ADAPTER_FILE = "adapter.safetensors"  # of a model that is the run's base with another LoRA

CARD = "guda.json"  # beside a trained model: what it is and the digest of its weights


def full_name(seed: int) -> str:
    return f"full-s{seed}"


def conditional_name(seed: int) -> str:
    return f"conditional-s{seed}"


def resolve(run: Run, name: str) -> str:
    """`base` of a run without a given model is the full model of the recipe's seed."""
    if name == "base" and run.recipe.model.path is None:
        if run.recipe.training is None:
            raise GudaError(
                "model-not-given", f"{run.root} has neither a model nor a training section; give --model to guda init"
            )
        return full_name(run.recipe.training.seed)
    return name


def model_files(run: Run, name: str) -> tuple[str, ...]:
    """Files that must exist in the run before the model can be loaded."""
    name = resolve(run, name)
    return () if name in GIVEN else (f"models/{name}/{CARD}",)


def has_model(run: Run) -> bool:
    """Whether the model under study is there; not in a run that neither has one nor trains one."""
    try:
        return all(map(run.has, model_files(run, "base")))
    except GudaError:
        return False


def model_digest(run: Run, name: str) -> str:
    name = resolve(run, name)
    if name in GIVEN:
        return str(run.info[GIVEN[name]])
    return str(read_json(run.path("models", name, CARD))["weights"])


@lru_cache(maxsize=8)
def _load(path: str, scheduler: str | None, expected: str, frozen: str | None, **options: Any) -> Denoiser:
    denoiser = Denoiser.from_pretrained(path, scheduler, **options)
    if (digest := denoiser.digest()) != expected:
        hint = "the model changed since; use another run"
        raise Mismatch("model-changed", f"{path}: digest of the weights", digest, expected, hint)
    if frozen is not None and denoiser.frozen is not None and (digest := denoiser.frozen.digest()) != frozen:
        what = f"{path}: digest of its VAE and text encoders"
        raise Mismatch("pipeline-changed", what, digest, frozen, "the pipeline changed since; use another run")
    return denoiser.to(default_device())


def load_model(run: Run, name: str) -> Denoiser:
    """Shared within a process: callers must not change its weights."""
    name, frozen = resolve(run, name), run.info.get("frozen")
    if name in GIVEN:
        path = run.recipe.model.path if name == "base" else run.recipe.model.start
        if path is None:
            raise GudaError(
                "pretrained-start-missing", f"{run.root}: the recipe names no pretrained start (model.start)"
            )
        options = model_options(run.recipe.model)
        return _load(path, run.recipe.model.scheduler, model_digest(run, name), frozen, **options)
    folder = run.path("models", name)
    if not (folder / CARD).is_file():
        raise GudaError("model-not-trained", f"{run.root} has no trained model yet; run: guda train {run.root}")
    if (folder / ADAPTER_FILE).is_file():
        return _load_adapter(folder, model_digest(run, name), load_model(run, "base"))
    return _load(str(folder), None, model_digest(run, name), frozen)


def model_options(config: ModelConfig) -> dict[str, Any]:
    """How the recipe's pipeline is read. A LoRA on `path` is the model under study and stays apart from its base; on
    `start` it is part of what everything is fine-tuned from."""
    lora = {} if config.lora is None else {"lora": config.lora, "fused": config.path is None}
    return lora | {name: value for name in OPTIONS if (value := getattr(config, name)) is not None}


@lru_cache(maxsize=8)
def _load_adapter(folder: Path, expected: str, base: Denoiser) -> Denoiser:
    tensors, _ = read_tensors(folder / ADAPTER_FILE)
    model = base.with_weights(base.weights() | tensors)
    if (digest := model.digest()) != expected:
        what = f"{folder}: digest of the base with its LoRA"
        raise Mismatch("model-changed", what, digest, expected, "the model changed since; use another run")
    return model


@lru_cache(maxsize=8)
def _schedule(scheduler: str | None) -> Schedule:
    return Schedule.from_scheduler(make_scheduler(scheduler))


def run_schedule(run: Run) -> Schedule:
    """The schedule, also before the model is trained: of one that is trained here no network is built."""
    if isinstance(run, Sketch):
        return run.model.schedule
    if (given := given_name(run.recipe.model)) is not None:
        return load_model(run, given).schedule
    return _schedule(run.recipe.model.scheduler)


def given_name(config: ModelConfig) -> str | None:
    """The model that lends the architecture, where one is given."""
    return "base" if config.path is not None else "start" if config.start is not None else None


def architecture(run: Run) -> Denoiser:
    """A network of the run's architecture; its weights do not matter."""
    if isinstance(run, Sketch):
        return run.model
    if (given := given_name(run.recipe.model)) is not None:
        return load_model(run, given)
    return build_denoiser(run.recipe.model, load_data(run).shape).to(default_device())


def run_classes(run: Run) -> Classes | None:
    """The classes of a class-conditional model; None for other models."""
    config = run.recipe.model
    if isinstance(run, Sketch) or given_name(config) is not None:
        n = architecture(run).n_classes
    else:
        n = config.options.get("num_class_embeds")
    return None if n is None else class_numbers(load_data(run), n)


def conditioning(run: Run) -> Prompts | Classes | None:
    """What the model is told of the images: prompts or classes."""
    return run_classes(run) if run.recipe.prompts is None else load_prompts(run)


def training_prompts(run: Run) -> tuple[str, ...] | None:
    """One per training image, a class as its number; None for a run whose model is told nothing, or not known what."""
    found = conditioning(run)
    return None if found is None else found.training


def training_warning(run: Run) -> str | None:
    """One line where the model under study was trained here and its loss was still falling at the end."""
    from guda.diffusion.training import still_falling

    if run.recipe.model.path is not None or run.recipe.training is None:
        return None
    path = run.path("models", resolve(run, "base"), CARD)
    found = still_falling(read_json(path).get("losses") or []) if path.is_file() else None
    return None if found is None else found.text


def count_weights(run: Run, pattern: str = "all") -> int:
    """Numbers in the weights whose names a regular expression finds."""
    from guda.baselines.gradients import chosen_weights

    return sum(w.numel() for w in chosen_weights(architecture(run), pattern).values())


def train_evals(run: Run) -> int:
    """Evaluation units of one training."""
    training = need_training(run)
    return 3 * training.steps * training.batch


def need_training(run: Run) -> TrainingConfig:
    if run.recipe.training is None:
        raise GudaError(
            "training-section-missing",
            f"{run.root}: the recipe has no `training` section, so nothing can be trained or retrained",
        )
    return run.recipe.training


def full_tasks(run: Run, seed: int) -> list[Task]:
    return [_train_task(run, full_name(seed), "train", "guda.run.models:train_full", seed, prompt_files(run))]


def conditional_tasks(run: Run) -> list[Task]:
    """The group-conditional twin of the run's model: trained once, listed apart from what each group costs."""
    seed = need_training(run).seed
    fn = "guda.run.models:train_conditional"
    return [_train_task(run, conditional_name(seed), "train/conditional", fn, seed, ())]


def _train_task(run: Run, name: str, stage: str, fn: str, seed: int, needs: tuple[str, ...]) -> Task:
    return Task(
        name=f"train {name}", stage=stage, fn=fn, args={"seed": seed}, makes=(f"models/{name}/{CARD}",), needs=needs,
        cost=float(train_evals(run)), trains=True, store="fp32",
    )  # fmt: skip


def train_model(run: Run, seed: int, checkpoint: Path, groups: Groups | None = None, **options: Any) -> Trained:
    """The run's architecture trained by its recipe, from its pretrained start where it has one.

    `groups`: another grouping of the same images, to leave out more than one group of the run's."""
    from guda.diffusion.training import train

    data, config, denoiser = load_data(run), need_training(run), architecture(run)
    latents, prompts = training_inputs(run, denoiser, config.flips)
    return train(
        denoiser, data.images, groups or data.groups, config, seed=seed, checkpoint=checkpoint, tick=tick,
        latents=latents, prompts=prompts, fine_tune=run.recipe.model.start is not None, **options,
    )  # fmt: skip


def training_inputs(run: Run, denoiser: Denoiser, flips: bool) -> tuple[Latents, tuple[str, ...] | None]:
    """The training images as the model sees them and their prompts; encoded once per run."""
    prompts = training_prompts(run)
    cached_conditions(run, denoiser, prompts)
    latents = cached_latents(run, denoiser, load_data(run), flips)
    if denoiser.frozen is not None:
        denoiser.frozen.release()  # all that training sees of them is on disk now
    return latents, prompts


def train_full(run: Run, seed: int) -> float:
    return _train_and_publish(run, full_name(seed), seed, {})


def train_conditional(run: Run, seed: int) -> float:
    names = [*load_data(run).groups.names, None]
    about = {"labels": names, "label_dropout": LABEL_DROPOUT, "evals": train_evals(run)}
    return _train_and_publish(run, conditional_name(seed), seed, about, LABEL_DROPOUT)


def _train_and_publish(
    run: Run, name: str, seed: int, about: dict[str, Any], label_dropout: float | None = None
) -> float:
    from guda.diffusion.training import fresh

    denoiser, config = architecture(run), need_training(run)
    checkpoints = run.path("checkpoints", name)
    held_out = None if label_dropout is not None or denoiser.conditional else held_out_images(run)
    trained = train_model(
        run, seed, checkpoints, label_dropout=label_dropout, validation=held_out, preview=_preview(run, name, denoiser)
    )
    if not distributed.is_main():
        return trained.earlier
    if label_dropout is not None:
        denoiser = fresh(denoiser, (), len(load_data(run).groups) + 1)
    own = adapted(denoiser.module)
    model = denoiser.with_weights(denoiser.weights() | trained.weights if own else trained.weights)
    with atomic_folder(run.path("models", name)) as tmp:
        if own:  # not one more copy of the base
            write_tensors(tmp / ADAPTER_FILE, trained.weights)
        else:
            model.save_pretrained(tmp)
        write_json(
            tmp / CARD, {"name": name, "seed": seed, "weights": model.digest(), "steps": config.steps,
                         "losses": trained.losses} | about
            | ({"validation": trained.validation} if trained.validation else {})
        )  # fmt: skip
    return drop_checkpoints(checkpoints, trained.earlier)


def _preview(run: Run, name: str, denoiser: Denoiser) -> Preview | None:
    """Of the model under study, where it needs neither prompts nor a VAE."""
    from guda.diffusion.preview import Preview

    shown = denoiser.frozen is None and not denoiser.conditional and not isinstance(denoiser.schedule, FlowSchedule)
    return Preview(run.path("previews"), name) if shown and name == resolve(run, "base") else None


def drop_checkpoints(folder: Path, earlier: float) -> float:
    """Delete the checkpoints of a published model; returns the seconds spent before an interruption."""
    remove_folder(folder)
    return earlier
