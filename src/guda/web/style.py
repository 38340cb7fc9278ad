"""The app's appearance: the report's style sheets, scoped to what guda draws, and a theme with the same colours.

The report turns dark when the system is; Gradio marks dark by a class, so the report's dark colours go under it. Every
rule is nested below `.guda`, for its class names are plain words that Gradio's own widgets may use, too.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from guda.scoring.bars import split_sheet

SHEETS = (("guda.scoring", "bars.css"), ("guda.report", "health.css"), ("guda.web", "web.css"))


def sheet(sources: tuple[tuple[str, str], ...] = SHEETS) -> str:
    """One style sheet: colours of the page, colours of the dark page, and rules for what is inside `.guda`."""
    light, dark, rules = "", "", ""
    for package, name in sources:
        found = split_sheet(files(package).joinpath(name).read_text("utf-8"))
        light, dark, rules = light + found[0], dark + found[1], rules + found[2]
    light = light.replace("color-scheme: light dark;", "color-scheme: light;")
    outside = files("guda.web").joinpath("frame.css").read_text("utf-8")
    return f":root {{{light}}}\n.dark {{ color-scheme: dark;{dark}}}\n{outside}\n.guda {{\n{rules}\n}}\n"


def theme() -> Any:
    """Gradio's widgets in the report's colours; fonts are the system's, so nothing is fetched."""
    from gradio.themes import Base

    both = {
        "body_background_fill": "var(--paper)",
        "body_text_color": "var(--ink)",
        "body_text_color_subdued": "var(--soft)",
        "background_fill_primary": "var(--card)",
        "background_fill_secondary": "var(--faint)",
        "block_background_fill": "var(--card)",
        "block_border_color": "var(--line)",
        "block_label_background_fill": "var(--card)",
        "block_label_text_color": "var(--ink)",
        "block_title_text_color": "var(--ink)",
        "block_info_text_color": "var(--soft)",
        "border_color_primary": "var(--line)",
        "border_color_accent": "var(--blue)",
        "color_accent_soft": "var(--faint)",
        "input_background_fill": "var(--card)",
        "input_border_color": "var(--soft)",
        "input_border_color_focus": "var(--focus)",
        "input_placeholder_color": "var(--soft)",
        "checkbox_background_color": "var(--card)",
        "checkbox_background_color_selected": "var(--blue)",
        "checkbox_border_color": "var(--soft)",
        "checkbox_border_color_selected": "var(--blue)",
        "checkbox_label_background_fill": "var(--card)",
        "checkbox_label_background_fill_hover": "var(--faint)",
        "checkbox_label_background_fill_selected": "var(--faint)",
        "checkbox_label_border_color": "var(--line)",
        "checkbox_label_text_color": "var(--ink)",
        "checkbox_label_text_color_selected": "var(--ink)",
        "button_primary_background_fill": "var(--blue)",
        "button_primary_background_fill_hover": "var(--blue)",
        "button_primary_text_color": "var(--card)",
        "button_secondary_background_fill": "var(--card)",
        "button_secondary_background_fill_hover": "var(--faint)",
        "button_secondary_border_color": "var(--soft)",
        "button_secondary_text_color": "var(--ink)",
        "link_text_color": "var(--blue)",
        "panel_background_fill": "var(--card)",
    }
    made = Base(primary_hue="blue", neutral_hue="stone", font=("sans-serif",), font_mono=("monospace",))
    return made.set(
        **both, **{f"{key}_dark": value for key, value in both.items()},
        color_accent="var(--blue)", block_shadow="none", block_border_width="1px", button_primary_shadow="none",
    )  # fmt: skip
