"""A weight's change as a product of two thin matrices.

    dW = B A,   B [out, r],  A [r, in]            a convolution's [out, in, kh, kw] is taken as [out, in kh kw]

For a dense change the best B A of rank r is its truncated singular value decomposition (Eckart-Young): the squared
error is the sum of the discarded squared singular values. A LoRA adapter is trained in this form. A file holds the two
factors of weight `name` as `name@B` and `name@A`; a change that is kept whole is just `name`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import torch

from guda.errors import GudaError

B, A = "@B", "@A"  # no state dict has an @ in its names


def factors_numel(shape: Sequence[int], rank: int) -> int:
    return rank * (shape[0] + prod(shape[1:]))


def pays(shape: Sequence[int], rank: int) -> bool:
    """Whether two factors are smaller than the matrix; biases and norms never are."""
    return len(shape) > 1 and factors_numel(shape, rank) < prod(shape)


def factor(change: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """B and A of the best approximation of rank `rank`. The singular values are shared evenly between the two, so that
    neither needs more range than the other when they are rounded."""
    u, s, v = torch.linalg.svd(change.double().flatten(1), full_matrices=False)
    root = s[:rank].sqrt()
    return (u[:, :rank] * root).to(change.dtype), (root[:, None] * v[:rank]).to(change.dtype)


def compress(changes: Mapping[str, torch.Tensor], rank: int) -> dict[str, torch.Tensor]:
    """Factors where they are smaller, the change itself elsewhere."""
    found = {}
    for name, change in changes.items():
        if change.is_floating_point() and pays(change.shape, rank):
            found[name + B], found[name + A] = factor(change, rank)
        else:
            found[name] = change
    return found


def changes(
    tensors: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor], scale: float, where: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, dW) of every stored change, shaped as in `weights`; factors give scale * B A."""
    for key, value in tensors.items():
        name = key.removesuffix(B).removesuffix(A)
        if name not in weights:
            raise GudaError("weights-mismatch", f"{where} does not fit this network: it has no weight {name!r}")
        shape = weights[name].shape
        if key == name:
            if value.shape != shape:
                raise GudaError(
                    "weight-shape-mismatch",
                    f"{where}: {name!r} is {tuple(value.shape)}, the network has {tuple(shape)}",
                )
            yield name, value
            continue
        b, a = tensors.get(name + B), tensors.get(name + A)
        if a is None or b is None:
            raise GudaError("factor-missing", f"{where}: {name!r} has one factor of two; make it again")
        if b.ndim != 2 or len(shape) < 2 or (b.shape[0], *a.shape) != (shape[0], b.shape[1], prod(shape[1:])):
            sizes = f"{tuple(b.shape)} x {tuple(a.shape)}"
            raise GudaError(
                "factor-shape-mismatch", f"{where}: factors of {name!r} are {sizes}, the network has {tuple(shape)}"
            )
        if key.endswith(B):
            # in float64 on the CPU: once rounded, the result does not tell how many threads summed it
            yield name, (scale * (b.double() @ a.double())).float().reshape(shape)
