"""Training theta_full, its LOGO counterparts and a group-conditional twin: one loop, exact resume.

E || target - network(x_t, t, c) ||^2 with AdamW, warm-up and cosine, clipping, and an EMA in fp32 (SPEC section 3),
from fresh weights or from one pretrained start, which LOGO then shares with the full model. All
randomness is a function of (key, step), so a checkpoint is weights, EMA, optimiser moments and the stream's cursor;
a resumed run ends in the same bits as an uninterrupted one.
"""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guda.data.groups import Groups
from guda.diffusion.cond import Cond
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.latents import Latents, encode_all
from guda.diffusion.noise import generator, torch_seed
from guda.diffusion.stream import Batch, Stream
from guda.errors import GudaError
from guda.runs.recipe import TrainingConfig
from guda.runs.store import atomic_folder, read_json, read_tensors, write_json, write_tensors


def stream_key(seed: int, leave_out: str | None, coupled: bool) -> tuple[str | int, ...]:
    """Coupled LOGO runs share the stream and the initial weights of the full model of that seed."""
    return (seed, "train") if coupled or leave_out is None else (seed, "train", leave_out)


def fresh(denoiser: Denoiser, key: tuple[str | int, ...], labels: int | None = None) -> Denoiser:
    """A newly initialised network of the same architecture, or of its twin that is told one of `labels` classes."""
    module: Any = denoiser.module
    if not hasattr(module, "from_config"):
        raise GudaError(f"{type(module).__name__} has no from_config, so it cannot be made anew; use a diffusers model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(*key, "init"))
        new = copy.copy(denoiser)
        # diffusers drops what it believes to be defaults, positional arguments among them
        config = {k: v for k, v in module.config.items() if k != "_use_default_values"}
        if labels is not None:
            config["num_class_embeds"] = new.n_classes = labels
        new.module = type(module).from_config(config).to(denoiser.device).eval()
    return new


def group_condition(
    groups: Groups, index: np.ndarray, dropout: float, key: tuple[str | int, ...], device: torch.device
) -> Cond:
    """Each image's group, or with probability `dropout` the null label, which comes after the last group."""
    dropped = generator(*key).random(len(index)) < dropout
    return Cond({"class_labels": torch.from_numpy(np.where(dropped, len(groups), groups.labels[index])).to(device)})


def prompt_condition(
    denoiser: Denoiser, prompts: Sequence[str], index: np.ndarray, dropout: float, key: tuple[str | int, ...]
) -> Cond | None:
    """Each image's prompt, or with probability `dropout` the empty one."""
    dropped = generator(*key).random(len(index)) < dropout
    cond = denoiser.condition(["" if d else prompts[i] for i, d in zip(index, dropped, strict=True)])
    return None if cond is None else cond.to(denoiser.device)


def to_batch(denoiser: Denoiser, x0: Latents, batch: Batch, flips: bool) -> tuple[torch.Tensor, ...]:
    """(x_0, t, eps, x_t) of a batch of the stream."""
    x = x0.take(batch.index, batch.flip if flips else None)
    t, eps = torch.from_numpy(batch.t), torch.from_numpy(batch.eps)
    x, eps = x.to(denoiser.device), eps.to(denoiser.device)
    return x, t.to(denoiser.device), eps, denoiser.schedule.add_noise(x, eps, t)


def _seed_dropout(device: torch.device, seed: int) -> None:
    """torch.manual_seed would format a traceback for every device it might seed later: 10 % of a small step."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


@dataclass
class Trained:
    weights: dict[str, torch.Tensor]  # the scored ones: EMA or raw, by recipe
    earlier: float  # seconds spent before this process resumed it
    losses: list[float]  # mean training loss per 1 % of the run


def train(
    denoiser: Denoiser,
    images: np.ndarray,
    groups: Groups,
    config: TrainingConfig,
    *,
    seed: int,
    leave_out: str | None = None,
    coupled: bool = True,
    checkpoint: Path | None = None,
    tick: Callable[[int, int], None] = lambda done, total: None,
    label_dropout: float | None = None,
    prompts: Sequence[str] | None = None,
    fine_tune: bool = False,
    latents: Latents | None = None,
) -> Trained:
    """Train a fresh network of `denoiser`'s architecture on all groups, or on all but `leave_out`.

    `fine_tune`: start from `denoiser`'s own weights instead. `prompts`: one per image, for text-to-image models.
    `latents`: the images encoded before. With `label_dropout` it is its class-conditional twin: told each image's
    group, or a null label instead."""
    if denoiser.frozen is not None and prompts is None:
        raise GudaError("a text-to-image model is trained with one prompt per image; build them with: guda prompts")
    start = (fine_tune, latents or encode_all(denoiser, images, config.flips), prompts)
    with torch.random.fork_rng(devices=[]):  # dropout is seeded step by step; the caller's generator is left alone
        return _train(denoiser, groups, config, seed, leave_out, coupled, checkpoint, tick, label_dropout, *start)


def _train(
    denoiser: Denoiser, groups: Groups, config: TrainingConfig, seed: int, leave_out: str | None, coupled: bool,
    checkpoint: Path | None, tick: Callable[[int, int], None], label_dropout: float | None, fine_tune: bool,
    x0: Latents, prompts: Sequence[str] | None,
) -> Trained:  # fmt: skip
    from diffusers.optimization import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup
    from diffusers.training_utils import EMAModel

    key = stream_key(seed, leave_out, coupled)
    model = denoiser.clone() if fine_tune else fresh(denoiser, key, None if label_dropout is None else len(groups) + 1)
    module = model.module
    stream = Stream(
        key, groups, model.shape, model.schedule.T,
        leave_out=None if leave_out is None else groups.index(leave_out),
        exposure_matched=config.exposure_matched,
    )  # fmt: skip
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW(parameters, config.lr, weight_decay=config.weight_decay, fused=True)
    schedule = (
        get_cosine_schedule_with_warmup(optimizer, config.warmup, config.steps)
        if config.schedule == "cosine"
        else get_constant_schedule_with_warmup(optimizer, config.warmup)
    )
    ema = None if config.ema is None else EMAModel(parameters, decay=config.ema, foreach=True)
    step, earlier = 0, 0.0
    losses: list[float] = []
    if checkpoint is not None and (saved := _newest(checkpoint)) is not None:
        step, earlier, losses = _restore(saved, module, optimizer, schedule, ema, stream)

    started = time.monotonic()
    every = max(1, config.steps // 100)
    recent = torch.zeros(())
    module.train()
    while step < config.steps:
        drawn, cond = stream.take(config.batch), None
        _, t, eps, x_t = batch = to_batch(model, x0, drawn, config.flips)
        if label_dropout is not None:
            cond = group_condition(groups, drawn.index, label_dropout, (*key, "labels", step), model.device)
        elif prompts is not None:
            cond = prompt_condition(model, prompts, drawn.index, config.prompt_dropout, (*key, "prompts", step))
        _seed_dropout(model.device, torch_seed(*key, "dropout", step))
        loss = torch.nn.functional.mse_loss(model.raw(x_t, t, cond), model.target(batch[0], eps, t))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, config.clip)
        optimizer.step()
        schedule.step()
        if ema is not None:
            ema.step(parameters)
        step += 1
        recent += loss.detach().cpu() / every
        if step % every == 0:
            losses.append(float(recent))
            recent = torch.zeros(())
            if not np.isfinite(losses[-1]):
                raise GudaError(f"training diverged before step {step} (loss {losses[-1]}); lower training.lr")
        tick(step, config.steps)
        # only where the running mean is empty, so that the loss curve resumes exactly too
        due = step // config.checkpoint_every > (step - every) // config.checkpoint_every
        if checkpoint is not None and step % every == 0 and due and step < config.steps:
            spent = earlier + time.monotonic() - started
            _save(checkpoint / f"step-{step:08d}", module, optimizer, schedule, ema, stream, step, spent, losses)
    module.eval()
    if ema is not None:
        ema.copy_to(parameters)
    model.check_finite("training", "it diverged: lower the learning rate")
    weights = {k: v.detach().cpu().clone() for k, v in module.state_dict().items()}
    return Trained(weights, earlier, losses)


# ---- checkpoints -------------------------------------------------------------------------------------------------


def _newest(folder: Path) -> Path | None:
    return max(folder.glob("step-*"), default=None)


def _save(
    path: Path, module: Any, optimizer: Any, schedule: Any, ema: Any, stream: Stream, step: int, seconds: float,
    losses: list[float],
) -> None:  # fmt: skip
    tensors = {f"model.{k}": v for k, v in module.state_dict().items()}
    for i, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{i}.{k}": v for k, v in state.items()}
    if ema is not None:
        tensors |= {f"ema.{i}": v for i, v in enumerate(ema.shadow_params)}
    rest = {"step": step, "seconds": seconds, "losses": losses, "cursor": stream.cursor,
            "schedule": {k: v for k, v in schedule.state_dict().items() if k != "lr_lambdas"}}  # fmt: skip
    with atomic_folder(path) as tmp:
        write_tensors(tmp / "state.safetensors", tensors)
        write_json(tmp / "state.json", rest)
    for old in path.parent.glob("step-*"):
        if old != path:
            shutil.rmtree(old, ignore_errors=True)


def _restore(
    path: Path, module: Any, optimizer: Any, schedule: Any, ema: Any, stream: Stream
) -> tuple[int, float, list[float]]:
    tensors, _ = read_tensors(path / "state.safetensors")
    rest = read_json(path / "state.json")
    module.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, field = name.split(".")
            moments.setdefault(int(index), {})[field] = value
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    schedule.load_state_dict(rest["schedule"] | {"lr_lambdas": [None]})
    for group, lr in zip(optimizer.param_groups, rest["schedule"]["_last_lr"], strict=True):
        group["lr"] = lr
    if ema is not None:
        ema.shadow_params = [tensors[f"ema.{i}"] for i in range(len(ema.shadow_params))]
        ema.optimization_step = rest["step"]
    stream.seek(*rest["cursor"])
    return rest["step"], rest["seconds"], rest["losses"]
