"""LoRA-tuned bases: W + scale B A written into the weights at load, so that everything after sees one plain network."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guda.errors import GudaError


def fuse(pipeline: str, network: str, parts: Mapping[str, Any], lora: str) -> bool:
    """Add a diffusers LoRA file to the network and text encoders among `parts`, in place; whether an encoder moved."""
    import diffusers

    file = Path(lora).expanduser()
    if not file.is_file() or file.suffix != ".safetensors":
        raise GudaError("lora-file-invalid", f"model.lora {lora!r} is not a .safetensors file")
    try:
        import peft  # noqa: F401
    except ImportError:
        raise GudaError("package-missing", "model.lora needs peft; run: pip install 'guda[lora]'") from None
    cls = getattr(diffusers, pipeline)
    takes = inspect.signature(cls.__init__).parameters
    # parts that do not matter here are left out, and so is what would warn of their absence
    given = {n: parts.get(n) for n, p in takes.items() if n != "self" and p.default is p.empty}
    given |= {n: False for n in ("requires_safety_checker", "add_watermarker") if n in takes}
    before = {name: _sums(part) for name, part in parts.items()}
    try:
        pipe = cls(**given)
        pipe.load_lora_weights(str(file.parent), weight_name=file.name)
        pipe.fuse_lora(components=[c for c in pipe._lora_loadable_modules if getattr(pipe, c, None) is not None])
        pipe.unload_lora_weights()
    except Exception as e:  # diffusers and peft raise many kinds; each means that the file does not fit
        raise GudaError(
            "lora-mismatch", f"model.lora {lora} does not fit this {pipeline}: {str(e).splitlines()[0]}"
        ) from e
    moved = [name for name in before if _sums(parts[name]) != before[name]]
    if network not in moved:
        raise GudaError(
            "lora-without-effect", f"model.lora {lora} changes no weight of the network; was it made for another model?"
        )
    return any(name.startswith("text_encoder") for name in moved)


def _sums(part: Any) -> list[float]:
    return [float(p.detach().double().sum()) for p in part.parameters()] if hasattr(part, "parameters") else []
