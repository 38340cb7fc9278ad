"""Reading and writing the diffusers folder layout. Safetensors only, and only classes guda knows: no code is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guda.diffusion.frozen import Frozen, from_source
from guda.errors import GudaError

if TYPE_CHECKING:
    from guda.diffusion.denoiser import Denoiser


NETS = ("UNet2DModel", "UNet2DConditionModel", "SD3Transformer2DModel", "ResidualMLP")

PIPELINES = ("StableDiffusionPipeline", "StableDiffusionXLPipeline", "StableDiffusion3Pipeline")

FROZEN = "frozen.json"  # beside a network trained here: where its text encoder and VAE are found

SCHEDULES = ("linear", "scaled_linear", "squaredcos_cap_v2", "sigmoid")


def _net_class(name: str) -> Any:
    if name == "ResidualMLP":
        from guda.diffusion.networks import ResidualMLP

        return ResidualMLP
    if name in NETS:
        import diffusers

        return getattr(diffusers, name)
    raise GudaError("network-unsupported", f"network class {name!r} is not supported; guda reads {', '.join(NETS)}")


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


def find_folder(path: str) -> Path:
    folder = Path(path).expanduser()
    return folder if folder.exists() else _download(path)


def load(path: str, scheduler: str | None = None, lora: str | None = None) -> tuple[Any, Any, Frozen | None]:
    """(network, scheduler, what stands around it) from a pipeline folder, a bare model folder (then `scheduler` is
    needed), or a Hub id. `lora`: a diffusers LoRA file to add to a text-to-image pipeline's weights."""
    folder = find_folder(path)
    frozen: Frozen | None = None
    if (folder / "model_index.json").is_file():
        index = _read_config(folder / "model_index.json")
        found = folder / "scheduler"
        if str(index.get("_class_name")) in PIPELINES:
            from guda.diffusion.pipelines import read_pipeline

            noise = _scheduler(folder, found, scheduler)
            module, frozen = read_pipeline(folder, path, _read_net, lora)
            return module, noise, frozen
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
                f"{', '.join(PIPELINES)} and pixel models (unet, scheduler)",
            )
        cls = _net_class(index["unet"][1])
        net_folder = folder / "unet"
    elif (folder / "config.json").is_file():
        cls = _net_class(str(_read_config(folder / "config.json").get("_class_name")))
        net_folder = folder
        found = next(
            (f for f in (folder, folder / "scheduler", folder.parent / "scheduler")
             if (f / "scheduler_config.json").is_file()), folder,
        )  # fmt: skip
    else:
        raise GudaError(
            "model-folder-invalid",
            f"{folder} holds neither model_index.json nor config.json; give a diffusers model folder",
        )
    if lora is not None:
        raise GudaError(
            "lora-unsupported", f"model.lora is for text-to-image pipelines ({', '.join(PIPELINES)}), not {folder}"
        )
    noise = _scheduler(folder, found, scheduler)
    module = _read_net(cls, net_folder)
    frozen = from_source(_read_config(folder / FROZEN)) if (folder / FROZEN).is_file() else None
    return module, noise, frozen


def _scheduler(folder: Path, found: Path, given: str | None) -> Any:
    if given is not None:
        return make_scheduler(given)
    if not (found / "scheduler_config.json").is_file():
        raise GudaError(
            "schedule-missing",
            f"{folder} has no noise schedule (scheduler_config.json); say which one it was trained with, "
            "e.g. --scheduler linear:1000 or --scheduler FOLDER",
        )
    return read_scheduler(found)


def _read_net(cls: Any, folder: Path) -> Any:
    if not any(folder.glob("*.safetensors")):
        raise GudaError(
            "weights-not-safetensors",
            f"{folder} holds no .safetensors weights (pickled .bin files are not read); re-save it",
        )
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
        if (folder / "model_index.json").is_file():
            index = _read_config(folder / "model_index.json")
            if str(index.get("_class_name")) in PIPELINES:
                from guda.diffusion.pipelines import download_patterns

                wanted = ["model_index.json", *download_patterns(index)]
        return Path(snapshot_download(path, allow_patterns=wanted, ignore_patterns=unwanted))
    except Exception as e:  # offline, missing, gated: huggingface_hub has a class for each
        raise GudaError(
            "model-hub-error", f"model {path!r}: no such folder, and the Hub says: {str(e).splitlines()[0]}"
        ) from e


def save(denoiser: Denoiser, folder: Path) -> None:
    module, scheduler = denoiser.module, denoiser.scheduler
    if not hasattr(module, "save_pretrained") or type(module).__name__ not in NETS:
        raise GudaError(
            "network-not-saveable",
            f"{type(module).__name__} cannot be saved as a diffusers folder; use one of {', '.join(NETS)}",
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
