"""Per-sample gradients: what every gradient method is made of.

For each of B samples, each seen at S noise levels (x_t [B, S, C, H, W]), the gradient with respect to the weights of

    loss           mean over levels and pixels of (output - target)^2      TRAK: the training loss
    squared_norm   mean over levels and pixels of output^2                 D-TRAK: the same with a target of zero
    mean_output    mean over levels and pixels of output                   DAS

`output` is the network's own (eps, v, x_0 or velocity), as is the target. One backward pass of the mean over levels
writes p numbers once, not S times. `vmap` batches the samples through torch.func; `loop` takes them one by one, for
networks that torch.func cannot batch. Both give the same gradients up to rounding.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

from guda.diffusion.cond import Cond
from guda.diffusion.denoiser import Denoiser
from guda.errors import GudaError

Output = Literal["loss", "squared_norm", "mean_output"]

Mode = Literal["vmap", "loop"]

KEYS_AND_VALUES = r"attn2\.to_[kv]"  # cross-attention of Stable Diffusion: what listens to the prompt


def chosen_weights(denoiser: Denoiser, pattern: str = "all") -> dict[str, nn.Parameter]:
    """The weights that gradients are taken of: all, or those whose name a regular expression finds."""
    found = {
        name: value
        for name, value in denoiser.module.named_parameters()
        if pattern == "all" or re.search(pattern, name)
    }
    if not found:
        first = next(name for name, _ in denoiser.module.named_parameters())
        raise GudaError(
            "weights-pattern-unmatched",
            f"weights {pattern!r} names none of the network's weights (such as {first!r}); give another",
        )
    return found


def regular_expression(value: str) -> str:
    """For settings: a text that `re` reads."""
    try:
        re.compile(value)
    except re.error as e:
        raise ValueError(f"{value!r} is not a regular expression ({e})") from None
    return value


class _Raw(nn.Module):
    """`denoiser.raw` as a module, so that torch.func can put other weights in."""

    def __init__(self, denoiser: Denoiser) -> None:
        super().__init__()
        self.network = denoiser.module
        self._denoiser = [denoiser]  # in a list: its module must not be registered twice

    def forward(self, x_t: torch.Tensor, t: torch.Tensor, told: dict[str, torch.Tensor]) -> torch.Tensor:
        return self._denoiser[0].raw(x_t, t, Cond(told) if told else None)


def value(output: torch.Tensor, target: torch.Tensor, what: Output) -> torch.Tensor:
    """The function that is differentiated; output and target are [S, C, H, W] of one sample."""
    if what == "mean_output":
        return output.mean()
    return (output - (target if what == "loss" else torch.zeros_like(target))).square().mean()


class Gradients:
    """Gradients of `what` with respect to `weights` of one network."""

    def __init__(self, denoiser: Denoiser, what: Output = "loss", weights: str = "all", mode: Mode = "vmap") -> None:
        self.denoiser, self.what, self.mode = denoiser, what, mode
        self.names = list(chosen_weights(denoiser, weights))
        self._raw = _Raw(denoiser)
        state = {**dict(self._raw.named_parameters()), **dict(self._raw.named_buffers())}
        state = {name: v.detach() for name, v in state.items()}
        self._weights = {name: state.pop(f"network.{name}") for name in self.names}
        self._rest = state

    @property
    def sizes(self) -> dict[str, int]:
        return {name: w.numel() for name, w in self._weights.items()}

    def __call__(
        self, x_t: torch.Tensor, t: torch.Tensor, target: torch.Tensor, cond: Cond | None = None
    ) -> dict[str, torch.Tensor]:
        """{weight: [B, size]} for x_t and target [B, S, C, H, W], t [S] or of each sample [B, S], cond of the B."""
        told = {} if cond is None else cond.tensors

        def f(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor, t: Any, told: Any) -> torch.Tensor:
            inside = {f"network.{name}": w for name, w in weights.items()} | self._rest
            repeated = {k: v.expand(len(t), *v.shape) for k, v in told.items()}
            return value(torch.func.functional_call(self._raw, inside, (x, t, repeated)), y, self.what)

        # the fused attention kernels have no batching rule
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            found = (self._vmap if self.mode == "vmap" else self._loop)(f, x_t, target, t, told)
        return {name: g.flatten(1) for name, g in found.items()}

    def _vmap(self, f: Callable[..., torch.Tensor], *given: Any) -> dict[str, torch.Tensor]:
        try:
            own = 0 if given[2].ndim == 2 else None  # timesteps of each sample, or of all
            return torch.func.vmap(torch.func.grad(f), in_dims=(None, 0, 0, own, 0))(self._weights, *given)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as e:
            if "can't allocate memory" in str(e):
                raise
            first = str(e).splitlines()[0]
            raise GudaError(
                "network-not-batchable",
                f"torch.func cannot batch this network ({first}); set per_sample: loop in the method's settings",
            ) from e

    def _loop(self, f: Callable[..., torch.Tensor], *given: Any) -> dict[str, torch.Tensor]:
        weights = {name: w.clone().requires_grad_() for name, w in self._weights.items()}
        rows = []
        x_t, target, t, told = given
        for i in range(len(x_t)):
            out = f(weights, x_t[i], target[i], t[i] if t.ndim == 2 else t, {k: v[i] for k, v in told.items()})
            rows.append(torch.autograd.grad(out, list(weights.values()), allow_unused=True, materialize_grads=True))
        return {name: torch.stack(parts) for name, parts in zip(weights, zip(*rows, strict=True), strict=True)}
