"""Functions of a Python file as tools: their schemas, their arguments, and what is refused where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import file_checks
from agentrl.config.load import load_config
from agentrl.toolservers import user_files
from agentrl.toolservers.argument_types import ArgumentError
from agentrl.toolservers.docstrings import split
from agentrl.toolservers.function_tools import FunctionFileError, FunctionTool, tools_of
from agentrl.toolservers.functions import FunctionRunner, as_text
from agentrl.toolservers.mcp_stdio import Call, outcome_of

SHOP = '''\
from __future__ import annotations
import enum
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict

from agentrl.toolservers import Session, ToolError, effect

Size = Literal["small", "large"]

class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"

@dataclass
class Item:
    """An item.

    Args:
        name: its name
    """
    name: str
    count: int = 1
    tags: list[str] = field(default_factory=list)

class Place(TypedDict):
    city: str
    zip: NotRequired[int]

class Cart(Session):
    def __init__(self) -> None:
        self.items: list[Item] = []

def put(cart: Cart, item: Item, color: Color = Color.RED) -> str:
    """Put an item into the cart.

    Args:
        item: what to put
            into it
        color (Color): of the item
    """
    cart.items.append(item)
    return f"{len(cart.items)} {item.count + 1} {color.name}"

@effect("pure")
async def ship(to: Place, size: Size, *, weight: float | None = None, note: Annotated[str, "why"] = "") -> Any:
    """Ship it."""
    if to["city"] == "nowhere":
        raise ToolError("nobody lives there")
    if to["city"] == "gone":
        raise SystemExit(3)
    return {"size": size, "weight": weight, "to": to}

def fails(pair: tuple[int, str], many: set[int], table: dict[str, list[int]]) -> None:
    """Always fails."""
    raise KeyError(f"{pair} {sorted(many)} {table}")

def helper(x):
    return x

def _private(x):
    """Not a tool."""
'''


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "shop.py"
    path.write_text(SHOP)
    return path


def by_name(path: Path) -> dict[str, FunctionTool]:
    return {tool.name: tool for tool in tools_of(path)}


def test_schemas_come_from_hints_and_docstrings(shop: Path) -> None:
    tools = by_name(shop)
    assert list(tools) == ["put", "ship", "fails"]
    assert (tools["put"].description, tools["put"].effect, tools["ship"].effect) == (
        "Put an item into the cart.",
        None,
        "pure",
    )
    assert tools["put"].schema == {
        "type": "object",
        "properties": {
            "item": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "its name"},
                    "count": {"type": "integer", "default": 1},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["name"],
                "description": "what to put into it",
            },
            "color": {"enum": ["red", "blue"], "type": "string", "description": "of the item", "default": "red"},
        },
        "required": ["item"],
    }
    assert tools["ship"].schema == {
        "type": "object",
        "properties": {
            "to": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
                "required": ["city"],
            },
            "size": {"enum": ["small", "large"], "type": "string"},
            "weight": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "note": {"type": "string", "description": "why", "default": ""},
        },
        "required": ["to", "size"],
    }
    for tool in tools.values():
        jsonschema.Draft202012Validator.check_schema(tool.schema)


def test_calls_get_python_values_and_the_state_of_their_session(shop: Path) -> None:
    found = by_name(shop)
    runner = FunctionRunner(user_files.load(shop, "tools_of_the_run", first=True))

    def call(name: str, arguments: dict[str, Any], session: str = "") -> tuple[str, bool]:
        return outcome_of(runner.tool(found[name]), arguments, Call(session))

    assert call("put", {"item": {"name": "x"}}, "one") == ("1 2 RED", False)
    assert call("put", {"item": {"name": "y", "count": 4.0}, "color": "blue"}, "one") == ("2 5 BLUE", False)
    assert call("put", {"item": {"name": "z"}}, "two") == ("1 2 RED", False)
    assert call("put", {"item": {"name": "z", "count": "3"}}) == ("item.count must be an integer, got '3'", True)
    assert call("put", {"items": 1}) == ("there is no 'items'; known are: item, color", True)
    assert call("put", {}) == ("item is missing", True)
    shipped = call("ship", {"to": {"city": "Bern"}, "size": "small"})
    assert shipped == ('{"size": "small", "weight": null, "to": {"city": "Bern"}}', False)
    assert call("ship", {"to": {"city": "nowhere"}, "size": "small"}) == ("nobody lives there", True)
    assert call("ship", {"to": {"city": "gone"}, "size": "small"}) == ("SystemExit: 3", True)
    failed = call("fails", {"pair": [1, "a"], "many": [2, 2], "table": {"k": [3]}})
    assert failed == ("""KeyError: "(1, 'a') [2] {'k': [3]}\"""", True)


HEAD = "from typing import *\nfrom agentrl.toolservers import effect\n"
REFUSED = [
    ("def f(x): 'Doc.'", 3, 7, "the parameter x of f has no type", "`x: str`"),
    ("def f(a: int, x: bytes): 'Doc.'", 3, 18, "the parameter x of f: the type bytes cannot", "Take a str"),
    ("def f(x: list[Callable]): 'Doc.'", 3, 15, "the type Callable cannot", "pass a function"),
    ("def f(x: dict[int, str]): 'Doc.'", 3, 15, "the keys of dict[int, str] are not str", "texts as keys"),
    ("def f(*xs: int): 'Doc.'", 3, 8, "any number of arguments (*xs)", "Name each parameter"),
    ("def f(x: 'numpy.ndarray'): 'Doc.'", 3, 10, "the type numpy.ndarray cannot", "Use str, int"),
    ("class A(TypedDict):\n  a: 'A'\ndef f(x: A): 'Doc.'", 4, 6, "A contains itself", "Take Any"),
    ("@effect('none')\ndef f(): 'Doc.'", 3, 9, "there is no effect 'none'", "pure, session, outside"),
    ("@tool(example={'x': Y})\ndef f(x: str): 'Doc.'", 3, 15, "the example of f is not made of plain", "as they are"),
    ("@tool(example=[1])\ndef f(x: str): 'Doc.'", 3, 15, "the example of f is no dict", "as they are"),
    ("@tool(example={})\ndef f(x: str): 'Doc.'", 3, 15, "the example of f has no x", "every required"),
    ("@tool(example={'z': 1})\ndef f(x: str = ''): 'Doc.'", 3, 15, "f has no parameter z", "as they are"),
    ("def f(x: int:\n  'Doc.'", 3, 13, "SyntaxError", ""),
    ("def f(x): pass", 0, 0, "there is no public function with a docstring", "underscore"),
]


@pytest.mark.parametrize(("code", "line", "column", "why", "advice"), REFUSED, ids=[each[3][:40] for each in REFUSED])
def test_functions_that_cannot_be_described_are_refused_with_their_place(
    tmp_path: Path, code: str, line: int, column: int, why: str, advice: str
) -> None:
    file = tmp_path / "tools.py"
    file.write_text(HEAD + code)
    with pytest.raises(FunctionFileError) as refused:
        tools_of(file)
    place = f"{file}, line {line}, column {column}: " if line else f"{file}: "
    assert str(refused.value).startswith(place), str(refused.value)
    assert why in str(refused.value)
    assert advice in refused.value.hint
    run_file = tmp_path / "run.yaml"
    run_file.write_text(
        "name: demo\nmodel: {build: tiny}\nenvironments: {e: {dataset: d.jsonl, tools: own}}\n"
        "tools: {own: {functions: tools.py}}\n"
    )
    config = load_config(run_file, environ={}).config
    problem = file_checks.problem_of_server("own", config.tools["own"], Path(config.dir))
    assert problem is not None
    assert problem.message == f"tools.own.functions: {refused.value}."
    assert problem.hint == refused.value.hint


@pytest.mark.parametrize(
    "docstring",
    [
        "Do it.\n\nArgs:\n    a: first\n        line\n    b (int, optional): second\n\nReturns:\n    x",
        "Do it.\n\n:param int a: first\n    line\n:param b: second\n:returns: x",
        "Do it.\n\nParameters\n----------\na : int\n    first\n    line\nb\n    second\n\nReturns\n-------\nx",
    ],
)
def test_arguments_are_described_in_three_ways(docstring: str) -> None:
    text, described = split(docstring)
    assert described == {"a": "first line", "b": "second"}
    assert text.startswith("Do it.")
    assert "first" not in text


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=5,
)
HINTS = st.recursive(
    st.sampled_from(["str", "int", "float", "bool", "None", "Any", "Literal['a', 1]", "list", "dict"]),
    lambda inner: st.one_of(
        inner.map("list[{}]".format),
        inner.map("dict[str, {}]".format),
        inner.map("Optional[{}]".format),
        st.builds("{} | {}".format, inner, inner),
        st.builds("tuple[{}, {}]".format, inner, inner),
    ),
    max_leaves=4,
)


@given(hint=HINTS, value=JSON)
def test_a_value_is_converted_if_and_only_if_it_fits_the_schema(
    tmp_path_factory: pytest.TempPathFactory, hint: str, value: object
) -> None:
    file = tmp_path_factory.getbasetemp() / "hinted.py"
    file.write_text(f"def f(x: {hint}):\n  'Doc.'\n")
    (tool,) = tools_of(file)
    fits = jsonschema.Draft202012Validator(tool.schema).is_valid({"x": value})
    try:
        converted = tool.fields[0].type.convert(value, "x", lambda name: None)
    except ArgumentError:
        assert not fits
    else:
        assert fits
        assert isinstance(as_text(converted), str)
