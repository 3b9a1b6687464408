"""Search over a corpus: ranked documents, and no query is a syntax error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.toolservers import ToolError
from agentrl.toolservers.corpus_search import CorpusError, CorpusIndex, match_of


def index_of(*places: Path) -> CorpusIndex:
    index = CorpusIndex(":memory:")
    index.build([str(place) for place in places])
    return index


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "guides").mkdir()
    (tmp_path / "guides" / "baking.md").write_text("intro\n# Baking bread\nKnead the dough, then bake it.\n")
    (tmp_path / "notes.txt").write_text("The dough of yesterday is still in the kitchen.\n")
    rows = [{"id": "r1", "title": "Rivers", "text": "Rivers run to the sea."}, {"content": "Bread and rivers."}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG dough")
    return tmp_path


def test_documents_are_ranked_with_snippets(corpus: Path) -> None:
    index = index_of(corpus)
    found = index.search("bread dough", 5)
    assert [one["id"] for one in found] == ["guides/baking.md", "rows.jsonl:2", "notes.txt"]
    assert found[0]["title"] == "Baking bread"
    assert "dough" in found[0]["snippet"]
    assert [one["id"] for one in index.search('"bread and rivers" sea', 5)] == ["rows.jsonl:2"]
    assert len(index.search("the", 2)) == 2
    assert index.fetch("r1") == ("Rivers", "Rivers run to the sea.")
    assert index.fetch("r2") is None


@settings(max_examples=300)
@given(st.text(st.characters() | st.sampled_from("\"'()*:^-+{}\0 ANDORNEAR_"), max_size=60))
def test_no_query_is_a_syntax_error(query: str) -> None:
    if match_of(query):
        assert len(SMALL.search(query, 3)) <= 1
    else:
        with pytest.raises(ToolError, match="the query has no words"):
            SMALL.search(query, 3)


SMALL = CorpusIndex(":memory:")
SMALL._database.execute("INSERT INTO documents (id, title, text) VALUES ('a', 'AND OR', 'NEAR to_you')")
SMALL._database.execute("INSERT INTO words (words) VALUES ('rebuild')")


def test_words_of_the_query_language_are_words() -> None:
    assert [SMALL.search(query, 1)[0]["id"] for query in ("NEAR(", "AND AND", "to_you*", 'title:OR "')] == ["a"] * 4


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"text": "x"}\n{"text": \n', "line 2: this is not JSON"),
        ('{"words": "x"}\n', "line 1: a row needs a text"),
        ('{"id": 1, "text": "x"}\n{"id": 1, "text": "y"}\n', "two documents have the id 1"),
        ("", "there is no document"),
    ],
)
def test_a_corpus_that_cannot_be_read_is_refused_with_its_line(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(CorpusError, match=why):
        index_of(tmp_path)
