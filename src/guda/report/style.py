"""How figures look: colours told apart by colour-blind readers too (Okabe and Ito), and files that are the same bytes
whenever they are drawn from the same numbers. Matplotlib is optional and imported when a figure is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guda.errors import GudaError
from guda.files import atomic_path

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")  # grey for their yellow

MARKERS = ("o", "s", "^", "D", "v", "P", "X")

DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))

INK, FAINT = "#222222", "#BBBBBB"

DIVERGING = "RdBu_r"  # blue below 0, white at 0, red above

SETTINGS: Any = {
    "svg.hashsalt": "guda", "svg.fonttype": "path", "pdf.fonttype": 42, "font.family": "DejaVu Sans", "font.size": 8.5,
    "axes.titlesize": 9.5, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK,
    "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "text.color": INK, "legend.frameon": False,
    "legend.fontsize": 7.5, "lines.linewidth": 1.3, "figure.dpi": 100, "savefig.dpi": 150, "path.simplify": True,
}  # fmt: skip

METADATA: dict[str, dict[str, Any]] = {  # no dates: the same numbers give the same bytes
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}


def look(number: int) -> dict[str, Any]:
    """Colour and marker of the number-th series; 49 of them differ."""
    shift = number // len(OKABE_ITO)
    return {"color": OKABE_ITO[number % len(OKABE_ITO)], "marker": MARKERS[(number + shift) % len(MARKERS)]}


def dashes(number: int) -> Any:
    return DASHES[(number // len(OKABE_ITO)) % len(DASHES)]


@contextmanager
def drawing(path: Path, width: float, height: float) -> Iterator[Any]:
    """A matplotlib Figure (inches) that is saved to `path` (.svg, .pdf, .png) when the block ends well."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise GudaError(
            "package-missing", 'figures need matplotlib; install it with: pip install "guda[figures]"'
        ) from None
    kind = path.suffix.removeprefix(".")
    if kind not in METADATA:
        raise GudaError("figure-type-unsupported", f"figures are written as .svg, .pdf or .png, not as {path.name}")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's matplotlibrc says, the file is the same
        matplotlib.rcParams.update(SETTINGS)
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        with atomic_path(path) as tmp:
            figure.savefig(tmp, format=kind, metadata=METADATA[kind])
