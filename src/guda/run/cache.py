"""Latents of a run's images and embeddings of its prompts, computed once and cached in the run.

    RUN/cache/latents-<frozen part + images>[-mirrored].safetensors
    RUN/cache/prompts-<frozen part>-<texts>.safetensors        every text once

A VAE takes longer over 24,000 pictures than a hundred training steps, and every LOGO model and every unlearning sees
the same latents. Files are memory-mapped, so that processes share them. Models without a VAE need no latents kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch

from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser, Latents, encode_all
from guda.files import TEMPORARY, digest, write_tensors
from guda.parts import FolderParts
from guda.run.run import Run


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
