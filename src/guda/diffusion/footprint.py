"""Peak memory of a network at work, from shapes alone: nothing is allocated, downloaded or computed.

The network is built on torch's `meta` device and takes one step there, forward and backward. Every tensor that the step
makes is counted while it lives, so the highest sum is the peak of activations and gradients:

    peak = weights x copies + moments + EMA + max over time of (activations + gradients + temporaries)

Attention is counted as a fused kernel keeps it (queries, keys, values, output; no matrix of all pairs). Not counted:
the context of a GPU and its libraries' workspaces (about 1 GB), fragmentation, and anything but this network.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GB = 1e9


class Living(TorchDispatchMode):
    """Bytes of all tensors that are made inside and still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor):
                self._see(value.untyped_storage())
        return out

    def ignore(self, module: nn.Module) -> None:
        """Weights are counted apart; a view of one is no new memory."""
        for value in module.state_dict(keep_vars=True).values():
            self._seen.add(value.untyped_storage()._cdata)

    def _see(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


class _Fused(torch.autograd.Function):
    """The shapes of fused attention."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        ctx.save_for_backward(q, k, v, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        q, k, v, _ = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


@contextmanager
def fused_attention() -> Iterator[None]:
    """Replaced by name and not by a mode of torch, which would not be there when a checkpoint computes again."""
    functional: Any = torch.nn.functional
    before = functional.scaled_dot_product_attention

    def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> Any:
        return _Fused.apply(query, key, value)

    functional.scaled_dot_product_attention = fused
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = before


def step_peak(module: nn.Module, call: Callable[[nn.Module], torch.Tensor], train: bool = True) -> int:
    """Bytes that one step needs beside the weights: forward, and with `train` backward with its gradients. `module` is
    on the meta device, `call` runs it on tensors that are."""
    counted = Living()
    counted.ignore(module)
    with fused_attention(), counted, torch.set_grad_enabled(train):
        output = call(module)
        if train:
            output.square().mean().backward()
        del output
    for parameter in module.parameters():
        parameter.grad = None
    return counted.peak


def weight_bytes(module: nn.Module, trained: bool = False) -> int:
    """Of all weights, or of those that an optimiser moves."""
    return sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad or not trained)


@dataclass(frozen=True)
class Footprint:
    """Bytes at the peak of one kind of work."""

    what: str
    weights: int  # all copies of the network
    moments: int  # of the optimiser, and an EMA
    step: int  # activations, gradients and temporaries

    @property
    def peak(self) -> int:
        return self.weights + self.moments + self.step


MOMENTS = {"adamw": 8, "adamw8bit": 2}  # bytes per trained weight


def training_footprint(
    what: str, module: nn.Module, call: Callable[[nn.Module], torch.Tensor], *, frozen_copies: int = 0,
    optimizer: str = "adamw", ema: bool = False,
) -> Footprint:  # fmt: skip
    """A step that moves the trainable weights of `module`; `frozen_copies`: teachers with weights of their own."""
    trained = weight_bytes(module, trained=True)
    return Footprint(
        what, weight_bytes(module) * (1 + frozen_copies),
        trained // 4 * (MOMENTS[optimizer] + (4 if ema else 0)), step_peak(module, call),
    )  # fmt: skip


def scoring_footprint(what: str, module: nn.Module, call: Callable[[nn.Module], torch.Tensor]) -> Footprint:
    """The full model and the working copy that each counterfactual is swapped into."""
    return Footprint(what, 2 * weight_bytes(module), 0, step_peak(module, call, train=False))
