"""Models from folders, Hub ids and recipes, by the registered families.

Folders have the diffusers layout. Safetensors only, and only classes that a family lists: no code is loaded.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from guda.config import ModelConfig, check_numbers
from guda.diffusion.families.base import FAMILIES, Family, Frozen
from guda.diffusion.lora import adapted, merged
from guda.errors import GudaError, first_line
from guda.files import writing
from guda.memory import check_memory
from guda.model_files import check_index, check_part, find_model, read_model_config, weight_files
from guda.parsing import whole_numbers

if TYPE_CHECKING:
    from guda.diffusion.denoiser import Denoiser


OPTIONS = ("size", "guidance")  # of the model section, for networks that take any size or are told a guidance

FROZEN = "frozen.json"  # beside a network trained here: where its text encoder and VAE are found

# of diffusers, with the betas of a variance-preserving path or with static flow matching (diffusion/schedule.py)
SCHEDULERS = (
    "DDPMScheduler", "DDIMScheduler", "PNDMScheduler", "DDPMParallelScheduler", "DDIMParallelScheduler",
    "DPMSolverMultistepScheduler", "DPMSolverSinglestepScheduler", "UniPCMultistepScheduler", "DEISMultistepScheduler",
    "EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler", "HeunDiscreteScheduler", "LMSDiscreteScheduler",
    "KDPM2DiscreteScheduler", "KDPM2AncestralDiscreteScheduler", "FlowMatchEulerDiscreteScheduler",
    "LCMScheduler", "TCDScheduler",  # refused later, with the reason
)  # fmt: skip

LONGEST = 100_000  # timesteps of a schedule

DEEPEST = 1024  # layers of a network

SCHEDULES = ("linear", "scaled_linear", "squaredcos_cap_v2", "sigmoid")


# ---- what the families know ------------------------------------------------------------------------------------------


def known_networks() -> dict[str, str]:
    """Network classes that may be read and saved -> the module that defines them."""
    pairs = [path.split(":") for family in FAMILIES.values() for path in family.networks]
    return {name: module for module, name in sorted(pairs)}


def network_class(name: str) -> Any:
    known = known_networks()
    if name not in known:
        raise GudaError(
            "network-unsupported", f"network class {name!r} is not supported; guda reads {', '.join(known)}"
        )
    return getattr(import_module(known[name]), name)


def pipeline_family(folder: Path) -> Family | None:
    """The family that reads this folder as a whole pipeline."""
    if not (folder / "model_index.json").is_file():
        return None
    name = str(read_model_config(folder / "model_index.json").get("_class_name"))
    return next((family for family in FAMILIES.values() if family.pipeline == name), None)


def _pipeline_names() -> str:
    return ", ".join(sorted(family.pipeline for family in FAMILIES.values() if family.pipeline is not None))


def read_frozen(source: dict[str, Any]) -> Frozen:
    """The frozen part that `Frozen.source()` described: of a pipeline folder, or of the family that `kind` names."""
    if source.get("kind") == "pipeline":
        given = {name: source[name] for name in OPTIONS if name in source}
        return _pipeline_frozen(str(source.get("path")), source.get("lora"), **given)
    if source.get("kind") not in FAMILIES:
        raise GudaError("frozen-part-unknown", f"unknown frozen part {source.get('kind')!r}; written by a newer guda?")
    try:
        return FAMILIES[source["kind"]].frozen(source)
    except (KeyError, TypeError, ValueError) as e:
        raise GudaError("frozen-part-damaged", f"{FROZEN} is damaged ({e!r}); get the model again") from None


@lru_cache(maxsize=2)
def _pipeline_frozen(path: str, lora: str | None, **options: Any) -> Any:
    """Shared within a process."""
    if lora is not None:  # it changed the text encoders too, and is read as a whole
        return load(path, None, lora, **options)[2]
    folder = find_folder(path)
    if (family := pipeline_family(folder)) is None:
        raise GudaError(
            "pipeline-unsupported", f"{folder} is not a pipeline that guda reads ({_pipeline_names()}); was it changed?"
        )
    return family.read_frozen(folder, path, **options)


def build_network(config: ModelConfig, shape: tuple[int, int, int]) -> tuple[Any, Frozen | None]:
    """A new network as the recipe defines it, for images of `shape` (C, H, W), and the components around it."""
    _, height, width = shape
    if height != width:
        raise GudaError("image-not-square", f"images are {width}x{height}; training needs square images: give --size N")
    family = FAMILIES.find(config.net)
    try:
        _check_depth(config.options, "model.options")
        check_memory(
            _weights(lambda: family.build(config, shape)[0]), "the network of model.options", "make it smaller"
        )
        return family.build(config, shape)
    except (TypeError, ValueError, RuntimeError, ArithmeticError, AttributeError, IndexError, KeyError) as e:
        raise GudaError(
            "model-options-invalid", f"model.options do not make a {config.net} network: {first_line(e)}"
        ) from None


@contextmanager
def held_warnings(drop: bool = False) -> Iterator[None]:
    """Warnings of diffusers about a model are shown when it is loaded; a refusal is one line without them."""
    held: list[tuple[logging.Logger, logging.LogRecord]] = []
    places = [logging.getLogger(f"diffusers.{name}") for name in ("configuration_utils", "models.modeling_utils")]
    filters = [partial(_hold, held, place) for place in places]
    for place, keep in zip(places, filters, strict=True):
        place.addFilter(keep)
    try:
        yield
    finally:
        for place, keep in zip(places, filters, strict=True):
            place.removeFilter(keep)
    for place, record in () if drop else held:
        place.handle(record)


def _hold(held: list[tuple[logging.Logger, logging.LogRecord]], place: logging.Logger, record: Any) -> bool:
    held.append((place, record))
    return False


def check_size(cls: Any, config: dict[str, Any], where: str) -> None:
    """Refuse a config whose network would not fit into memory, before its weights are allocated."""
    check_numbers(config, where)
    _check_depth(config, where)
    try:
        with held_warnings(drop=True):  # the same come again when the network is made
            needed = _weights(lambda: cls.from_config(config))
    except Exception as e:  # diffusers raises many kinds for a config that makes no network
        raise GudaError("model-unloadable", f"{where} cannot be loaded: {first_line(e)}") from None
    check_memory(needed, f"the network in {where}", "use a machine with more memory")


def _weights(build: Callable[[], Any]) -> int:
    """Bytes of a network's weights in float32, without allocating them."""
    try:
        with torch.device("meta"):
            return sum(4 * p.numel() for p in build().parameters())
    except NotImplementedError:  # a network of another package that computes while it is built
        return 0


def _check_depth(options: dict[str, Any], where: str) -> None:
    """A network is built layer by layer in Python, so a billion layers would take for ever even without weights."""
    for name, number in whole_numbers(options):
        if ("depth" in name or "layers" in name) and number > DEEPEST:
            raise GudaError("model-options-invalid", f"{where}: {name} is {number:.3g}; at most {DEEPEST} layers")


def build_denoiser(config: ModelConfig, shape: tuple[int, int, int]) -> Denoiser:
    """A network to train, by the recipe, for images of `shape` (C, H, W)."""
    from guda.diffusion.denoiser import Denoiser

    scheduler = make_scheduler(config.scheduler)
    module, frozen = build_network(config, shape)
    denoiser = Denoiser.from_module(module, scheduler, frozen=frozen)
    if denoiser.shape != (tuple(shape) if frozen is None else frozen.shape):
        raise GudaError(
            "model-options-mismatch",
            f"model.options make a network for {denoiser.shape}, the images are {tuple(shape)}",
        )
    return denoiser


# ---- noise schedules -------------------------------------------------------------------------------------------------


def make_scheduler(text: str | None) -> Any:
    """`linear:1000` or `squaredcos_cap_v2:4000:v_prediction` -> a DDPMScheduler; or a folder that holds one."""
    from diffusers import DDPMScheduler

    if text is None:
        raise GudaError(
            "scheduler-not-given", "model.scheduler is needed to train a model, e.g. squaredcos_cap_v2:1000"
        )
    if os.path.isfile(os.path.join(text, "scheduler_config.json")):  # false of what cannot be a path, too
        return read_scheduler(Path(text))
    kind, _, rest = text.partition(":")
    steps, _, prediction = rest.partition(":")
    decimal = steps.isascii() and steps.isdigit() and len(steps) <= len(str(LONGEST))
    if kind not in SCHEDULES or not decimal or not 2 <= int(steps) <= LONGEST:
        raise GudaError(
            "scheduler-invalid",
            f"scheduler {text!r} is neither a folder with scheduler_config.json nor KIND:STEPS[:PREDICTION] "
            f"with KIND one of {', '.join(SCHEDULES)} and 2 to {LONGEST:,} steps, e.g. linear:1000",
        )
    return DDPMScheduler(num_train_timesteps=int(steps), beta_schedule=kind, prediction_type=prediction or "epsilon")


def read_scheduler(folder: Path) -> Any:
    import diffusers

    config = read_model_config(folder / "scheduler_config.json")
    name = config.get("_class_name")
    if name not in SCHEDULERS:
        raise GudaError(
            "model-class-not-allowed",
            f"{folder}: {name!r} is not a scheduler that guda reads; it reads {', '.join(SCHEDULERS)}",
        )
    steps = config.get("num_train_timesteps", 1000)
    if isinstance(steps, bool) or not isinstance(steps, int) or not 2 <= steps <= LONGEST:
        raise GudaError(
            "scheduler-invalid", f"{folder}: num_train_timesteps is {steps!r:.40}; a whole number from 2 to {LONGEST:,}"
        )
    try:
        return getattr(diffusers, name).from_config(config)
    except Exception as e:  # whatever a value of the wrong kind makes of a constructor
        raise GudaError("scheduler-invalid", f"{folder}: {name} cannot be made: {first_line(e)}") from None


def _scheduler(folder: Path, own: Path, given: str | None) -> Any:
    """The given one, or the model's `own`."""
    if given is not None:
        return make_scheduler(given)
    if not (own / "scheduler_config.json").is_file():
        raise GudaError(
            "schedule-missing",
            f"{folder} has no noise schedule (scheduler_config.json); say which one it was trained with, "
            "e.g. --scheduler linear:1000 or --scheduler FOLDER",
        )
    return read_scheduler(own)


# ---- folders ---------------------------------------------------------------------------------------------------------


def find_folder(path: str) -> Path:
    if os.path.exists(os.path.expanduser(path)):
        return find_model(path)
    # what it is says which files are needed: repositories hold several copies of the weights
    family = pipeline_family(find_model(path, ["*.json"]))
    wanted = ["*.json", "*.safetensors"] if family is None else ["model_index.json", *family.download_patterns()]
    return find_model(path, wanted, ["*.fp16.safetensors", "*.non_ema.safetensors"])


def takes_any_size(path: str) -> bool:
    """Whether a pipeline's network takes pictures of any size, so that the recipe says which (`model.size`)."""
    local = os.path.exists(os.path.expanduser(path))
    family = pipeline_family(find_model(path) if local else find_model(path, ["*.json"]))
    return family is not None and family.any_size


def load(
    path: str, scheduler: str | None = None, lora: str | None = None, fused: bool = False, **options: Any
) -> tuple[Any, Any, Frozen | None]:
    """(network, scheduler, what surrounds it) from a pipeline folder, a bare model folder (then `scheduler` is
    needed), or a Hub id. `lora`: a diffusers LoRA file for a text-to-image pipeline, kept as the adapter that alone is
    trained (diffusion/lora.py), or `fused` into the weights. `options`: OPTIONS of the recipe's model section."""
    folder, given = find_folder(path), {k: v for k, v in options.items() if v is not None}
    if (family := pipeline_family(folder)) is not None:
        noise = _scheduler(folder, folder / "scheduler", scheduler)
        loras: dict[str, Any] = {} if lora is None else {"lora": lora, "fused": fused}
        module, frozen = family.read_pipeline(folder, path, **loras, **given)
        if scheduler is None:  # one that is given is somebody's word
            frozen.check_scheduler(noise)
        return module, noise, frozen
    if given and not (folder / FROZEN).is_file():
        raise GudaError(
            "model-option-unsupported", f"model.{next(iter(given))} is for text-to-image pipelines, not {folder}"
        )
    cls, net_folder, own = _find_network(folder)
    if lora is not None:
        raise GudaError(
            "lora-unsupported", f"model.lora is for text-to-image pipelines ({_pipeline_names()}), not {folder}"
        )
    noise = _scheduler(folder, own, scheduler)
    module = read_network(cls, net_folder)
    return module, noise, read_frozen(read_model_config(folder / FROZEN)) if (folder / FROZEN).is_file() else None


def _find_network(folder: Path) -> tuple[Any, Path, Path]:
    """(class, folder, folder of the scheduler) of a network without a VAE or a text encoder beside it."""
    if (folder / "model_index.json").is_file():
        index = read_model_config(folder / "model_index.json")
        check_index(folder, index)
        if "unet" not in index or "scheduler" not in index:
            raise GudaError(
                "pipeline-unsupported",
                f"{folder}/model_index.json names no unet and scheduler; not a DDPM-like pipeline",
            )
        more = sorted(k for k, v in index.items() if not k.startswith("_") and k not in ("unet", "scheduler") and v)
        if more:  # a VAE or a text encoder: the unet alone would be scored in the wrong space
            raise GudaError(
                "pipeline-unsupported",
                f"{folder} is a {index.get('_class_name')}, a pipeline with {', '.join(more)}; guda reads "
                f"{_pipeline_names()} and pixel models (unet, scheduler)",
            )
        if not isinstance(index["unet"], list):
            raise GudaError("model-config-unreadable", f"{folder}/model_index.json: unet is not [library, class]")
        return network_class(index["unet"][1]), folder / "unet", folder / "scheduler"
    if (folder / "config.json").is_file():
        cls = network_class(str(read_model_config(folder / "config.json").get("_class_name")))
        places = (folder, folder / "scheduler", folder.parent / "scheduler")
        return cls, folder, next((f for f in places if (f / "scheduler_config.json").is_file()), folder)
    raise GudaError(
        "model-folder-invalid",
        f"{folder} holds neither model_index.json nor config.json; give a diffusers model folder",
    )


def read_network(cls: Any, folder: Path) -> Any:
    check_part(folder)
    weight_files(folder)
    check_size(cls, read_model_config(folder / "config.json"), str(folder))
    with held_warnings():
        try:
            module, info = cls.from_pretrained(
                str(folder), use_safetensors=True, low_cpu_mem_usage=False, output_loading_info=True
            )
        except Exception as e:  # diffusers raises many kinds for a damaged file; each means the same to a user
            raise GudaError("model-unloadable", f"{folder} cannot be loaded: {first_line(e)}") from e
        # diffusers fills a missing weight with random numbers and drops an unknown one, with a warning only
        if odd := [*info["missing_keys"], *info["unexpected_keys"]]:
            raise GudaError(
                "weights-mismatch", f"{folder}: weights and config.json do not fit; {odd[0]!r} is on one side only"
            )
    return module.float()


def save(denoiser: Denoiser, folder: Path) -> None:
    module, scheduler = denoiser.module, denoiser.scheduler
    if not hasattr(module, "save_pretrained") or type(module).__name__ not in known_networks():
        raise GudaError(
            "network-not-saveable",
            f"{type(module).__name__} cannot be saved as a diffusers folder; use one of {', '.join(known_networks())}",
        )
    if scheduler is None:
        raise GudaError(
            "denoiser-without-scheduler", "the denoiser has no diffusers scheduler to save beside its weights"
        )
    library = "guda" if type(module).__module__.startswith("guda.") else "diffusers"
    index = {
        "_class_name": "DDPMPipeline",
        "scheduler": ["diffusers", type(scheduler).__name__],
        "unet": [library, type(module).__name__],
    }
    saver: Any = module
    if adapted(module):  # a plain network for everyone else
        saver = type(saver).from_config(saver.config)
        saver.load_state_dict(merged(module))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        saver.save_pretrained(str(folder / "unet"), safe_serialization=True)
        scheduler.save_pretrained(str(folder / "scheduler"))
        (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
        if denoiser.frozen is not None:
            (folder / FROZEN).write_text(json.dumps(denoiser.frozen.source(), indent=2) + "\n")
