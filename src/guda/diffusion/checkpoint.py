"""Checkpoint of a training: what moved, EMA, optimiser moments, learning rate, the stream's cursor.

All randomness is a function of (key, step), so this is enough to end in the same bits as an uninterrupted run. Frozen
weights (LoRA) are not kept: they are the start's.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from guda.diffusion.stream import Stream
from guda.files import atomic_folder, read_json, read_tensors, write_json, write_tensors


@dataclass
class State:
    """Everything that moves in a training."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Any  # of the learning rate
    ema: Any  # diffusers' EMAModel, or None
    stream: Stream
    scaler: Any = None  # of fp16 losses
    step: int = 0
    seconds: float = 0.0  # spent before this process resumed it
    losses: list[float] = field(default_factory=list)


def newest(folder: Path) -> Path | None:
    return max(folder.glob("step-*"), default=None)


def save(folder: Path, state: State, seconds: float) -> None:
    """The newest replaces the older ones; one that is ahead belongs to another process on the same training."""
    frozen = {k for k, p in state.module.named_parameters() if not p.requires_grad}
    tensors = {f"model.{k}": v for k, v in state.module.state_dict().items() if k not in frozen}
    for i, moments in state.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{i}.{k}": v for k, v in moments.items()}
    if state.ema is not None:
        tensors |= {f"ema.{i}": v for i, v in enumerate(state.ema.shadow_params)}
    rest = {"step": state.step, "seconds": seconds, "losses": state.losses, "cursor": state.stream.cursor,
            "schedule": {k: v for k, v in state.schedule.state_dict().items() if k != "lr_lambdas"}}  # fmt: skip
    if state.scaler is not None:
        rest["scaler"] = state.scaler.state_dict()
    path = folder / f"step-{state.step:08d}"
    with atomic_folder(path) as tmp:
        write_tensors(tmp / "state.safetensors", tensors)
        write_json(tmp / "state.json", rest)
    for old in folder.glob("step-*"):
        if old.name < path.name:
            shutil.rmtree(old, ignore_errors=True)


def restore(path: Path, state: State) -> None:
    tensors, _ = read_tensors(path / "state.safetensors")
    rest = read_json(path / "state.json")
    moved = {k[6:]: v for k, v in tensors.items() if k.startswith("model.")}
    state.module.load_state_dict(state.module.state_dict() | moved)
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".")
            moments.setdefault(int(index), {})[key] = value
    groups = state.optimizer.state_dict()["param_groups"]
    state.optimizer.load_state_dict({"state": moments, "param_groups": groups})
    state.schedule.load_state_dict(rest["schedule"] | {"lr_lambdas": [None]})
    for group, lr in zip(state.optimizer.param_groups, rest["schedule"]["_last_lr"], strict=True):
        group["lr"] = lr
    if state.ema is not None:
        shadow = state.ema.shadow_params
        state.ema.shadow_params = [tensors[f"ema.{i}"].to(p.device) for i, p in enumerate(shadow)]
        state.ema.optimization_step = rest["step"]
    if state.scaler is not None and "scaler" in rest:
        state.scaler.load_state_dict(rest["scaler"])
    state.stream.seek(*rest["cursor"])
    state.step, state.seconds, state.losses = rest["step"], rest["seconds"], rest["losses"]
