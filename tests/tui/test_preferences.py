"""The preferences file: its settings take effect, and its errors are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from tui import preferences
from tui.model.styled_text import Span, Tone
from tui.widgets.themes import DARK, LIGHT, Styles, themes


def colour_of(theme: str, own: dict[str, dict[str, str]]) -> str:
    strip = Styles(theme, own=own).strip((Span("well", Tone.GOOD),), 4)
    style = next(iter(strip)).style
    assert style is not None
    assert style.color is not None
    return style.color.name


def test_own_colours_replace_those_of_the_theme(tmp_path: Path) -> None:
    file = tmp_path / "console.yaml"
    file.write_text("theme: light\ncolours:\n  dark: {good: '#123456', ground: '#000000'}\n")
    made = preferences.load(file)
    own = {theme: dict(found) for theme, found in made.colours.items()}
    assert colour_of(DARK, own) == "#123456"
    assert colour_of(LIGHT, own) == colour_of(LIGHT, {})
    assert themes(own)[0].background == "#000000"
    assert themes(own)[0].success == "#123456"


def test_file_shown_in_the_docs_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "console.md").read_text()
    [text] = [part.split("```")[0] for part in page.split("```yaml\n")[1:] if "unit.restart" in part]
    file = tmp_path / "console.yaml"
    file.write_text(text)
    made = preferences.load(file)
    assert made.theme == "light"
    assert "f5" in made.keys["unit.restart"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("colours: {dark: {god: '#123456'}}", "no colour 'god'"),
        ("colours: {dark: {good: green}}", "'green' is not a colour"),
        ("colours: {dusk: {}}", "'dusk' - at `key` in `$.colours`"),
        ("keys: {unit.restart: [r], unit.drain: [r]}", "means both"),
        ("keys: {nothing: [r]}", "no action 'nothing'"),
    ],
)
def test_error_in_the_file_is_named(tmp_path: Path, text: str, shown: str) -> None:
    file = tmp_path / "console.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        preferences.load(file)
    assert shown in refused.value.message
