"""A text-to-image run behind the page: the prompt belongs to the question."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from textrun import copy_text

from guda.web.answer import answer
from guda.web.results import open_result
from guda.web.service import Service
from guda.web.uploads import Refused


def test_the_prompt_is_part_of_the_question(tmp_path: Path) -> None:
    service = Service(copy_text(tmp_path / "run").root)
    service.warm()
    assert service.condition == "prompt"
    path = tmp_path / "large.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)).save(path)
    with pytest.raises(Refused, match="enter the prompt"):
        service.take(path, "  ")
    one, note = service.take(path, "a cat in Crayon style")
    two, _ = service.take(path, "a dog in Crayon style")
    assert one != two
    assert "32 x 24" in note
    *_, shot = service.answer(one, "budget=100")
    assert shot.prompt == "a cat in Crayon style"
    html, _ = answer(service, open_result(service, one))
    assert "a cat in Crayon style" in html
    assert "Budget spent." in html
