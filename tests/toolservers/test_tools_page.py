"""docs/tools.md: its run file passes the check, and its functions work as the page says."""

from __future__ import annotations

import re
from pathlib import Path

from agentrl.config import file_checks
from agentrl.config.load import load_config
from agentrl.toolservers import user_files
from agentrl.toolservers.function_tools import tools_of
from agentrl.toolservers.functions import FunctionRunner
from agentrl.toolservers.mcp_stdio import Call, outcome_of

PAGE = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_of_the_page_works(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(block("yaml"))
    file = tmp_path / "tools.py"
    file.write_text(block("python"))
    for name in ("notes", "start"):
        (tmp_path / name).mkdir()
    config = load_config(tmp_path / "run.yaml", environ={}).config
    for name, server in config.tools.items():
        assert file_checks.problem_of_server(name, server, Path(config.dir)) is None
    runner = FunctionRunner(user_files.load(file, "tools_of_the_run", first=True))
    tools = {found.name: runner.tool(found) for found in tools_of(file)}
    assert {name: tool.effect for name, tool in tools.items()} == {"price": "pure", "put": "session"}
    assert outcome_of(tools["price"], {"item": "tea", "size": "large"}, Call("a")) == ("6", False)
    assert outcome_of(tools["price"], {"item": "milk"}, Call("a")) == ("there is no milk", True)
    assert outcome_of(tools["put"], {"item": "tea"}, Call("a")) == ('["tea"]', False)
    (tmp_path / "tried.yaml").write_text(re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1])
    tried = load_config(tmp_path / "tried.yaml", environ={}).config
    assert tried.tools["shop"].examples == {"price": {"item": "tea"}}
    (tmp_path / "notes").rmdir()
    problem = file_checks.problem_of_server("notes", config.tools["notes"], Path(config.dir))
    assert problem is not None
    assert problem.message == f"tools.notes.corpus: there is no file or directory {tmp_path / 'notes'}."
