"""guda: which training images shaped this picture?

    model  = guda.Denoiser.from_pretrained("path-or-hub-id")
    data   = guda.ImageData.from_folder("art/", group_by="level:1")
    bank   = guda.unlearn(model, data, operator="retrack")
    scores = guda.attribute(model, bank, guda.Queries.from_folder("generated/"))
    print(scores["img_0007"].top(3))

    run    = guda.open("runs/demo")
    scores = run.scores("hybrid")
    guda.show(run, "s1-00287")          # in a notebook: the card of one picture

Names are imported when first used, so that `import guda` and `guda --help` are instant.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from guda.api import attribute, show, unlearn
    from guda.api import open_run as open
    from guda.data.groups import Groups
    from guda.data.images import ImageData
    from guda.data.prompts import Prompts
    from guda.data.queries import Queries
    from guda.diffusion.denoiser import Denoiser
    from guda.errors import GudaError
    from guda.run.recipe import Recipe
    from guda.run.run import Run
    from guda.scoring.scores import Scores
    from guda.unlearning.bank import Bank, Counterfactual


__version__ = "0.1.0"

_WHERE = {
    "Bank": "guda.unlearning.bank",
    "Counterfactual": "guda.unlearning.bank",
    "Denoiser": "guda.diffusion.denoiser",
    "Groups": "guda.data.groups",
    "GudaError": "guda.errors",
    "ImageData": "guda.data.images",
    "Prompts": "guda.data.prompts",
    "Queries": "guda.data.queries",
    "Recipe": "guda.run.recipe",
    "Run": "guda.run.run",
    "Scores": "guda.scoring.scores",
    "attribute": "guda.api",
    "open": "guda.api",
    "show": "guda.api",
    "unlearn": "guda.api",
}

__all__ = [
    "Bank",
    "Counterfactual",
    "Denoiser",
    "Groups",
    "GudaError",
    "ImageData",
    "Prompts",
    "Queries",
    "Recipe",
    "Run",
    "Scores",
    "attribute",
    "open",
    "show",
    "unlearn",
]


def __getattr__(name: str) -> _typing.Any:
    from importlib import import_module

    if name not in _WHERE:
        raise AttributeError(f"module 'guda' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), {"open": "open_run"}.get(name, name))


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
