"""Models from folders, Hub ids and recipes, by the registered families.

Folders have the diffusers layout. Safetensors only, and only classes that a family lists: no code is loaded.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guda.config import ModelConfig
from guda.diffusion.families.base import FAMILIES, Family, Frozen
from guda.errors import GudaError

if TYPE_CHECKING:
    from guda.diffusion.denoiser import Denoiser


FROZEN = "frozen.json"  # beside a network trained here: where its text encoder and VAE are found

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
    name = str(_read_config(folder / "model_index.json").get("_class_name"))
    return next((family for family in FAMILIES.values() if family.pipeline == name), None)


def _pipeline_names() -> str:
    return ", ".join(sorted(family.pipeline for family in FAMILIES.values() if family.pipeline is not None))


def read_frozen(source: dict[str, Any]) -> Frozen:
    """The frozen part that `Frozen.source()` described: of a pipeline folder, or of the family that `kind` names."""
    if source.get("kind") == "pipeline":
        return _pipeline_frozen(source["path"], source.get("lora"))
    if source.get("kind") not in FAMILIES:
        raise GudaError("frozen-part-unknown", f"unknown frozen part {source.get('kind')!r}; written by a newer guda?")
    return FAMILIES[source["kind"]].frozen(source)


@lru_cache(maxsize=2)
def _pipeline_frozen(path: str, lora: str | None) -> Any:
    """Shared within a process."""
    if lora is not None:  # it changed the text encoders too, and is fused as a whole
        return load(path, None, lora)[2]
    folder = find_folder(path)
    if (family := pipeline_family(folder)) is None:
        raise GudaError(
            "pipeline-unsupported", f"{folder} is not a pipeline that guda reads ({_pipeline_names()}); was it changed?"
        )
    return family.read_frozen(folder, path)


def build_network(config: ModelConfig, shape: tuple[int, int, int]) -> tuple[Any, Frozen | None]:
    """A new network as the recipe defines it, for images of `shape` (C, H, W), and the components around it."""
    _, height, width = shape
    if height != width:
        raise GudaError("image-not-square", f"images are {width}x{height}; training needs square images: give --size N")
    family = FAMILIES.find(config.net)
    try:
        return family.build(config, shape)
    except (TypeError, ValueError, RuntimeError) as e:
        raise GudaError(
            "model-options-invalid", f"model.options do not make a {config.net} network: {str(e).splitlines()[0]}"
        ) from None


def build_denoiser(config: ModelConfig, shape: tuple[int, int, int]) -> Denoiser:
    """A network to train, by the recipe, for images of `shape` (C, H, W)."""
    from guda.diffusion.denoiser import Denoiser

    if config.scheduler is None:
        raise GudaError(
            "scheduler-not-given", "model.scheduler is needed to train a model, e.g. squaredcos_cap_v2:1000"
        )
    module, frozen = build_network(config, shape)
    denoiser = Denoiser.from_module(module, make_scheduler(config.scheduler), frozen=frozen)
    if denoiser.shape != (tuple(shape) if frozen is None else frozen.shape):
        raise GudaError(
            "model-options-mismatch",
            f"model.options make a network for {denoiser.shape}, the images are {tuple(shape)}",
        )
    return denoiser


# ---- noise schedules -------------------------------------------------------------------------------------------------


def make_scheduler(text: str) -> Any:
    """`linear:1000` or `squaredcos_cap_v2:4000:v_prediction` -> a DDPMScheduler; or a folder that holds one."""
    from diffusers import DDPMScheduler

    folder = Path(text)
    if (folder / "scheduler_config.json").is_file():
        return read_scheduler(folder)
    kind, _, rest = text.partition(":")
    steps, _, prediction = rest.partition(":")
    if kind not in SCHEDULES or not steps.isdigit() or int(steps) < 2:
        raise GudaError(
            "scheduler-invalid",
            f"scheduler {text!r} is neither a folder with scheduler_config.json nor KIND:STEPS[:PREDICTION] "
            f"with KIND one of {', '.join(SCHEDULES)}, e.g. linear:1000",
        )
    return DDPMScheduler(num_train_timesteps=int(steps), beta_schedule=kind, prediction_type=prediction or "epsilon")


def read_scheduler(folder: Path) -> Any:
    import diffusers

    config = _read_config(folder / "scheduler_config.json")
    cls = getattr(diffusers, str(config.get("_class_name")), None)
    if cls is None:
        raise GudaError("scheduler-unknown", f"{folder}: diffusers has no scheduler {config.get('_class_name')!r}")
    return cls.from_pretrained(str(folder))


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as e:
        raise GudaError("model-config-unreadable", f"{path} cannot be read: {e}") from None


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
    folder = Path(path).expanduser()
    return folder if folder.exists() else _download(path)


def load(path: str, scheduler: str | None = None, lora: str | None = None) -> tuple[Any, Any, Frozen | None]:
    """(network, scheduler, what stands around it) from a pipeline folder, a bare model folder (then `scheduler` is
    needed), or a Hub id. `lora`: a diffusers LoRA file to add to a text-to-image pipeline's weights."""
    folder = find_folder(path)
    if (family := pipeline_family(folder)) is not None:
        noise = _scheduler(folder, folder / "scheduler", scheduler)
        module, frozen = family.read_pipeline(folder, path, lora)
        return module, noise, frozen
    cls, net_folder, own = _find_network(folder)
    if lora is not None:
        raise GudaError(
            "lora-unsupported", f"model.lora is for text-to-image pipelines ({_pipeline_names()}), not {folder}"
        )
    noise = _scheduler(folder, own, scheduler)
    module = read_network(cls, net_folder)
    return module, noise, read_frozen(_read_config(folder / FROZEN)) if (folder / FROZEN).is_file() else None


def _find_network(folder: Path) -> tuple[Any, Path, Path]:
    """(class, folder, folder of the scheduler) of a network without a VAE or a text encoder beside it."""
    if (folder / "model_index.json").is_file():
        index = _read_config(folder / "model_index.json")
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
        return network_class(index["unet"][1]), folder / "unet", folder / "scheduler"
    if (folder / "config.json").is_file():
        cls = network_class(str(_read_config(folder / "config.json").get("_class_name")))
        places = (folder, folder / "scheduler", folder.parent / "scheduler")
        return cls, folder, next((f for f in places if (f / "scheduler_config.json").is_file()), folder)
    raise GudaError(
        "model-folder-invalid",
        f"{folder} holds neither model_index.json nor config.json; give a diffusers model folder",
    )


def weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise GudaError(
            "weights-not-safetensors",
            f"{folder} holds no .safetensors weights (pickled .bin files are not read); re-save it",
        )
    return files


def read_network(cls: Any, folder: Path) -> Any:
    weight_files(folder)
    try:
        module, info = cls.from_pretrained(
            str(folder), use_safetensors=True, low_cpu_mem_usage=False, output_loading_info=True
        )
    except Exception as e:  # diffusers raises many kinds for a damaged file; each means the same to a user
        raise GudaError("model-unloadable", f"{folder} cannot be loaded: {str(e).splitlines()[0]}") from e
    # diffusers fills a missing weight with random numbers and drops an unknown one, with a warning only
    if odd := [*info["missing_keys"], *info["unexpected_keys"]]:
        raise GudaError(
            "weights-mismatch", f"{folder}: weights and config.json do not fit; {odd[0]!r} is on one side only"
        )
    return module.float()


def _download(path: str) -> Path:
    from huggingface_hub import snapshot_download

    if path.startswith((".", "/")) or path.count("/") != 1:
        raise GudaError("model-missing", f"model {path!r}: no such folder, and not a Hub id (owner/name)")
    try:
        folder = Path(snapshot_download(path, allow_patterns=["*.json"]))
        wanted, unwanted = ["*.json", "*.safetensors"], ["*.fp16.safetensors", "*.non_ema.safetensors"]
        if (family := pipeline_family(folder)) is not None:
            wanted = ["model_index.json", *family.download_patterns()]
        return Path(snapshot_download(path, allow_patterns=wanted, ignore_patterns=unwanted))
    except Exception as e:  # offline, missing, gated: huggingface_hub has a class for each
        raise GudaError(
            "model-hub-error", f"model {path!r}: no such folder, and the Hub says: {str(e).splitlines()[0]}"
        ) from e


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
    folder.mkdir(parents=True, exist_ok=True)
    saver: Any = module
    saver.save_pretrained(str(folder / "unet"), safe_serialization=True)
    scheduler.save_pretrained(str(folder / "scheduler"))
    library = "guda" if type(module).__module__.startswith("guda.") else "diffusers"
    index = {
        "_class_name": "DDPMPipeline",
        "scheduler": ["diffusers", type(scheduler).__name__],
        "unet": [library, type(module).__name__],
    }
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
    if denoiser.frozen is not None:
        (folder / FROZEN).write_text(json.dumps(denoiser.frozen.source(), indent=2) + "\n")
