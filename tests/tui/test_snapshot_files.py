"""The form of snapshots of screens loses nothing, and stores a row once for all sizes that have it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.tui.snapshot_files import Picture, Row, Size, decode, encode

TONES = ("p", "d", "S", "x", "-p", ">B", "?a")
SIGNS = ("a", " ", "~", "|", ".", "1", "界", "│", "\xa0", "=")


@st.composite
def rows(draw: st.DrawFn, width: int) -> Row:
    text = "".join(draw(st.lists(st.sampled_from(SIGNS), max_size=width)))
    while cell_len(text) > width:
        text = text[:-1]
    tones: list[tuple[str, int]] = []
    left = width
    while left:
        cells = draw(st.integers(1, left))
        tone = draw(st.sampled_from([each for each in (*TONES, ".") if not tones or each != tones[-1][0]]))
        tones.append((tone, cells))
        left -= cells
    return Row(text + " " * (width - cell_len(text)), tuple(tones))


@st.composite
def pictures(draw: st.DrawFn) -> dict[Size, Picture]:
    """Screens of several sizes, which share most rows."""
    narrow = draw(st.integers(6, 12))
    shared = [row.code() for row in draw(st.lists(rows(narrow), min_size=1, max_size=4))]
    drawn: dict[Size, Picture] = {}
    for width in (narrow, narrow + 1, narrow + 20):
        own = [row.code() for row in draw(st.lists(rows(width), max_size=2))]
        codes = draw(st.lists(st.sampled_from(shared + own), min_size=1, max_size=8))
        drawn[width, len(codes)] = tuple(Row.of(code, width) for code in codes)
    return drawn


@given(rows(12))
def test_a_row_is_read_back_from_its_code(row: Row) -> None:
    assert Row.of(row.code(), 12) == row


@given(pictures())
def test_pictures_are_read_back_from_their_file(drawn: dict[Size, Picture]) -> None:
    assert decode(encode(drawn)) == drawn


def test_sizes_share_rows_and_equal_rows_are_counted() -> None:
    head, row, blank = (Row.of(code, 20) for code in ("demo ~ -S4 -p", "web-0 ~ p6 g5", ""))
    wide_head, wide_row, wide_blank = (Row.of(code, 30) for code in ("demo of today ~ -S4 -p", "web-0 ~ p6 g5", ""))
    small, large = (head, row, blank, blank), (wide_head, wide_row, wide_blank, wide_blank, wide_blank, wide_row)
    assert encode({(20, 4): small, (30, 6): large}) == (
        "20x4 30x6\n"
        "  1  .|demo ~ -S4 -p\n"
        "  .  1|demo of today ~ -S4 -p\n"
        "  1  1|web-0 ~ p6 g5\n"
        "  2  3|\n"
        "  .  1|web-0 ~ p6 g5"
    )
