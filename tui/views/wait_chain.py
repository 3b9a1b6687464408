"""Who waits for whom, as the coordinator last answered.

Invariant: that nobody waits is said only where somebody answered so, and an answer that grew old says how old.
"""

from __future__ import annotations

from tui.model import detail_lines
from tui.model.styled_text import Line, Span, Tone
from tui.views.detail_pages import DetailPage
from tui.views.query_views import ASKING, age_of_answer


class WaitsPage(DetailPage):
    def __init__(self) -> None:
        super().__init__("who waits for whom", self._lines, ("why",))

    def heading(self) -> str:
        console = self.console_app
        return f"{super().heading()}{age_of_answer(console, console.why_at if console.why else None)}"

    def _lines(self, width: int) -> list[Line]:
        console = self.console_app
        if console.why is not None:
            return detail_lines.of_waits(console.why, width)
        if self.mirror.link.connected:
            return [(Span(ASKING, Tone.DIM),)]
        return [(Span("Not known: nobody answered who waits for whom.", Tone.DIM),)]
