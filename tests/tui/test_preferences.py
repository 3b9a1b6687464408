"""A person's own file: what it says is done, and what is wrong in it is named."""

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


def test_colours_of_a_theme_are_a_persons_own_and_the_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "console.yaml"
    file.write_text("theme: light\ncolours:\n  dark: {good: '#123456', ground: '#000000'}\n")
    made = preferences.load(file)
    own = {theme: dict(found) for theme, found in made.colours.items()}
    assert colour_of(DARK, own) == "#123456"
    assert colour_of(LIGHT, own) == colour_of(LIGHT, {})
    assert themes(own)[0].background == "#000000"
    assert themes(own)[0].success == "#123456"


def test_the_file_in_the_documents_is_taken_as_it_stands(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "console.md").read_text()
    [text] = [part.split("```")[0] for part in page.split("```yaml\n")[1:] if "unit.restart" in part]
    file = tmp_path / "console.yaml"
    file.write_text(text)
    made = preferences.load(file)
    assert made.theme == "light"
    assert "f5" in made.keys["unit.restart"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("colours: {dark: {god: '#123456'}}", "no colour 'god'"),
        ("colours: {dark: {good: green}}", "'green' is no colour"),
        ("colours: {dusk: {}}", "colours.dusk"),
        ("keys: {unit.restart: [r], unit.drain: [r]}", "means both"),
        ("keys: {nothing: [r]}", "no action 'nothing'"),
    ],
)
def test_what_is_wrong_in_it_is_named(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "console.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        preferences.load(file)
    assert told in refused.value.message
