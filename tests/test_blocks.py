"""Blocks of one size: what is taken, and that full blocks are views."""

import numpy as np
import torch

from guda.blocks import blocks


def test_the_last_block_repeats_its_last_input() -> None:
    assert [(b.n, b.index) for b in blocks(7, 3)] == [(3, [0, 1, 2]), (3, [3, 4, 5]), (1, [6, 6, 6])]
    assert [b.n for b in blocks(6, 3)] == [3, 3]
    assert not list(blocks(0, 3))


def test_tensors_arrays_and_sequences_are_taken_alike() -> None:
    for given in (torch.arange(4), np.arange(4), [0, 1, 2, 3], (0, 1, 2, 3), range(4)):
        assert [list(map(int, b.take(given))) for b in blocks(4, 3)] == [[0, 1, 2], [3, 3, 3]]


def test_a_full_block_is_a_view() -> None:
    x = torch.zeros(4, 2)
    next(blocks(4, 2)).take(x).fill_(1)
    assert x.sum() == 4
