"""A Cond is cut and joined like the batch it belongs to."""

import pytest
import torch

from guda.diffusion.families.base import Cond


def test_indexing_and_joining_act_on_every_tensor() -> None:
    cond = Cond({"label": torch.arange(5), "text": torch.arange(10.0).reshape(5, 2)})
    assert len(cond) == 5
    again = Cond.cat([cond[:2], cond[torch.tensor([2, 3, 4])]]).to("cpu")
    assert all(torch.equal(again.tensors[k], cond.tensors[k]) for k in cond.tensors)
    assert cond[torch.tensor([4, 4])].tensors["label"].tolist() == [4, 4]


def test_tensors_of_different_batch_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="common batch size"):
        Cond({"a": torch.zeros(2), "b": torch.zeros(3)})
