"""Training with less memory: activations that are computed twice, and moments of 8 bits.

Neither changes what is computed on a CPU: a recomputed activation has the same bits (dropout draws the same masks).
Moments of 8 bits are rounded, so that a run with them is another run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from guda.errors import GudaError


def recompute(module: nn.Module) -> None:
    """Gradient checkpointing, in place: a block's activations are dropped after the forward pass."""
    network: Any = module
    if not getattr(network, "_supports_gradient_checkpointing", False):
        raise GudaError(
            "checkpointing-unsupported",
            f"{type(module).__name__} has no gradient checkpointing; set checkpointing: false",
        )
    network.enable_gradient_checkpointing()


def make_optimizer(
    name: str, parameters: Sequence[nn.Parameter], lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """AdamW, or that of bitsandbytes with moments of 8 bits."""
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr, betas=(0.9, 0.999), weight_decay=weight_decay, fused=True)
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError:
        raise GudaError(
            "package-missing", "optimizer adamw8bit needs bitsandbytes; run: pip install bitsandbytes, or use adamw"
        ) from None
    made: torch.optim.Optimizer = AdamW8bit(parameters, lr, betas=(0.9, 0.999), weight_decay=weight_decay)
    return made
