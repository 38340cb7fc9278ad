"""State of a training and its checkpoints: trained weights, EMA, optimiser moments, learning rate, stream position.

All randomness is a function of (key, step), so this is enough to end in the same bits as an uninterrupted run. Frozen
weights (LoRA) are not saved: they are those of the start.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from guda.config import TrainingConfig
from guda.diffusion.stream import Stream
from guda.files import atomic_folder, read_json, read_tensors, write_json, write_tensors


@dataclass
class State:
    module: nn.Module
    parameters: list[nn.Parameter]  # the trained ones
    optimizer: torch.optim.Optimizer
    schedule: Any  # of the learning rate
    ema: Any  # diffusers' EMAModel, or None
    stream: Stream
    scaler: Any = None  # of fp16 losses
    step: int = 0
    seconds: float = 0.0  # spent before this process resumed it
    losses: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, config: TrainingConfig, module: nn.Module, stream: Stream, scaler: Any = None) -> State:
        """AdamW, its learning rate and the EMA before the first step."""
        from diffusers.optimization import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup
        from diffusers.training_utils import EMAModel

        parameters = [p for p in module.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(
            parameters, config.lr, betas=(0.9, 0.999), weight_decay=config.weight_decay, fused=True
        )
        schedule = (
            get_cosine_schedule_with_warmup(optimizer, config.warmup, config.steps)
            if config.schedule == "cosine"
            else get_constant_schedule_with_warmup(optimizer, config.warmup)
        )
        ema = None if config.ema is None else EMAModel(parameters, decay=config.ema, foreach=True)
        return cls(module, parameters, optimizer, schedule, ema, stream, scaler)

    def save(self, folder: Path, seconds: float) -> None:
        """The newest replaces the older ones; one that is ahead belongs to another process on the same training."""
        frozen = {k for k, p in self.module.named_parameters() if not p.requires_grad}
        tensors = {f"model.{k}": v for k, v in self.module.state_dict().items() if k not in frozen}
        for i, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": v for k, v in moments.items()}
        if self.ema is not None:
            tensors |= {f"ema.{i}": v for i, v in enumerate(self.ema.shadow_params)}
        rest = {"step": self.step, "seconds": seconds, "losses": self.losses, "cursor": self.stream.cursor,
                "schedule": {k: v for k, v in self.schedule.state_dict().items() if k != "lr_lambdas"}}  # fmt: skip
        if self.scaler is not None:
            rest["scaler"] = self.scaler.state_dict()
        path = folder / f"step-{self.step:08d}"
        with atomic_folder(path) as tmp:
            write_tensors(tmp / "state.safetensors", tensors)
            write_json(tmp / "state.json", rest)
        for old in folder.glob("step-*"):
            if old.name < path.name:
                shutil.rmtree(old, ignore_errors=True)

    def restore(self, path: Path) -> None:
        tensors, _ = read_tensors(path / "state.safetensors")
        rest = read_json(path / "state.json")
        trained = {k[6:]: v for k, v in tensors.items() if k.startswith("model.")}
        self.module.load_state_dict(self.module.state_dict() | trained)
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".")
                moments.setdefault(int(index), {})[key] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.schedule.load_state_dict(rest["schedule"] | {"lr_lambdas": [None]})
        for group, lr in zip(self.optimizer.param_groups, rest["schedule"]["_last_lr"], strict=True):
            group["lr"] = lr
        if self.ema is not None:
            shadow = self.ema.shadow_params
            self.ema.shadow_params = [tensors[f"ema.{i}"].to(p.device) for i, p in enumerate(shadow)]
            self.ema.optimization_step = rest["step"]
        if self.scaler is not None and "scaler" in rest:
            self.scaler.load_state_dict(rest["scaler"])
        self.stream.seek(*rest["cursor"])
        self.step, self.seconds, self.losses = rest["step"], rest["seconds"], rest["losses"]


def newest(folder: Path) -> Path | None:
    return max(folder.glob("step-*"), default=None)
