"""Checks the code, programs and scripts that a run file names, before any process is started.

Invariants:
- The files are not run.
- The processes that need the files check them by the same functions, with the same messages.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from agentrl.config import server_arguments
from agentrl.config.contradictions import nearest
from agentrl.config.data_plane import SHIPPED_AGENTS, SHIPPED_SCORERS, ToolServer
from agentrl.config.run import RunConfig
from agentrl.config.tool_lock import packages_of
from agentrl.errors import ConfigError
from agentrl.toolservers.function_tools import FunctionFileError, tools_of

INTERPRETERS = ("python", "node", "bash", "sh", "ruby")
_BESIDE = "It is relative to the run file."
SCRIPTS = (".py", ".js", ".mjs", ".cjs", ".sh", ".rb")


def problems_of(config: RunConfig) -> Iterator[ConfigError]:
    """The errors that the processes which need the files would end with."""
    # A run without a data plane reads no user code.
    code = [problem_of_code(Path(path)) for path in config.rollout.code] if config.environments else []
    unreadable = [problem for problem in code if problem]
    yield from unreadable or _problems_of_names(config)
    for name, server in config.tools.items() if config.environments else ():
        if problem := problem_of_server(name, server, Path(config.dir)):
            yield problem
    python = config.engines.python
    kind = config.engines.kind
    if config.environments and kind in server_arguments.ALLOWED and python != "{python}" and not shutil.which(python):
        yield ConfigError(f"engines.python: there is no program {python}.", hint=f"Name the Python that has {kind}.")
    if config.tracing.endpoint and importlib.util.find_spec("opentelemetry.exporter") is None:
        hint = "`pip install 'agentrl[otel]'`"
        yield ConfigError("tracing.endpoint: the package opentelemetry-sdk is not installed.", hint=hint)
    curves = config.training.curves
    for package, wanted in (("mlflow", curves.mlflow.server), ("wandb", curves.wandb.project)):
        if wanted and importlib.util.find_spec(package) is None:
            yield ConfigError(
                f"training.curves.{package}: the package {package} is not installed.",
                hint=f"`pip install 'agentrl[{package}]'`",
            )
    demonstrations = config.training.demonstrations
    if config.is_job and demonstrations and not Path(demonstrations).is_file():
        yield ConfigError(
            f"training.demonstrations: there is no file {demonstrations}.", hint="It is relative to the run file."
        )


def problem_of_code(path: Path) -> ConfigError | None:
    """The reason why this cannot be a file of agent loops and scorers, or None."""
    if not path.exists():
        return ConfigError(f"rollout.code: there is no file {path}.", hint="It is relative to the run file.")
    if path.suffix != ".py" or not path.is_file():
        return ConfigError(f"rollout.code: {path} is no Python file.", hint="Name files that end in .py.")
    return _problem_of_syntax("rollout.code", path)


def _problems_of_names(config: RunConfig) -> Iterator[ConfigError]:
    """Messages about environments whose agent loop or scorer no file registers."""
    if not config.environments or not config.rollout.code:
        return
    registered = registered_names([Path(path) for path in config.rollout.code])
    if registered is None:
        return
    loops, scorers = registered
    files = ", ".join(Path(path).name for path in config.rollout.code)
    for name, environment in config.environments.items():
        own = [each for each, declared in config.environments.items() if declared.code]
        for key, named, known in (
            ("agent", environment.agent, (*SHIPPED_AGENTS, *loops, *own)),
            ("scorer", environment.scorer, (*SHIPPED_SCORERS, *scorers, *own)),
        ):
            if named not in known:
                yield ConfigError(
                    f"environments.{name}.{key}: {files} registers no {key} {named!r}; {nearest(named, known)}"
                )


def registered_names(files: Sequence[Path]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The agent loops and scorers that the files register, or None if they cannot be known without running the
    files."""
    found: dict[str, list[str]] = {"register_loop": [], "register_scorer": []}
    for file in files:
        used = called = 0
        for node in ast.walk(ast.parse(file.read_bytes())):
            match node:
                case ast.Import() | ast.ImportFrom() if _may_register(node):
                    return None
                case ast.Name(id=name) | ast.Attribute(attr=name) if name in found:
                    used += 1
                case ast.Call(
                    func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(value))]
                ) if name in found:
                    called += 1
                    found[name].append(value)
        if used != called:
            return None
    return tuple(found["register_loop"]), tuple(found["register_scorer"])


def _may_register(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import may register further names, or give another name to a function that registers."""
    modules = [node.module or "."] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    if any(alias.name in ("register_loop", "register_scorer") and alias.asname for alias in node.names):
        return True
    known = {*sys.stdlib_module_names, "agentrl"}
    return any(module.partition(".")[0] not in known for module in modules)


def problem_of_server(name: str, server: ToolServer, run_dir: Path) -> ConfigError | None:
    """The reason why the command of a tool server cannot be started, or None."""
    if server.address:
        return None
    if problem := _problem_of_own_server(name, server):
        return problem
    place = f"tools.{name}.command"
    program, *arguments = (
        word.replace("{python}", sys.executable).replace("{run_dir}", str(run_dir)) for word in server.start_command
    )
    cwd = Path(server.cwd.replace("{run_dir}", str(run_dir)))
    if cwd != run_dir and not cwd.is_dir():
        return ConfigError(f"tools.{name}.cwd: there is no directory {cwd}.", hint="It is relative to the run file.")
    if packages_of(server) and "/" not in program:
        return None  # Known only when the packages are installed.
    found = str(cwd / program) if "/" in program else shutil.which(program, path=server.env.get("PATH"))
    if found is None or not os.access(found, os.X_OK) or Path(found).is_dir():
        where = "" if "/" in program else " on the PATH"
        return ConfigError(f"{place}: there is no program {program}{where}.", hint="Install it, or name its path.")
    return _problem_of_script(place, program, arguments, cwd) if Path(program).name.startswith(INTERPRETERS) else None


def _problem_of_own_server(name: str, server: ToolServer) -> ConfigError | None:
    """Why a file of functions cannot become tools, or which requirement of a shipped server is missing."""
    place = f"tools.{name}"
    if server.functions:
        if not Path(server.functions).is_file():
            return ConfigError(f"{place}.functions: there is no file {server.functions}.", hint=_BESIDE)
        try:
            found = tools_of(Path(server.functions))
        except FunctionFileError as wrong:
            return ConfigError(f"{place}.functions: {wrong}.", hint=wrong.hint)
        outside = [tool.name for tool in found if server.effects.get(tool.name, tool.effect) == "outside"]
        if server.try_again and outside:
            acts = f"{', '.join(outside)} acts outside the session"
            return ConfigError(f"{place}.try_again calls tools twice, and {server.functions} says that {acts}.")
    for path in server.corpus:
        if not Path(path).exists():
            return ConfigError(f"{place}.corpus: there is no file or directory {path}.", hint=_BESIDE)
    if server.workspace and not Path(server.workspace).is_dir():
        return ConfigError(f"{place}.workspace: there is no directory {server.workspace}.", hint=_BESIDE)
    return None


def _problem_of_script(place: str, program: str, arguments: Sequence[str], cwd: Path) -> ConfigError | None:
    """Why an interpreter cannot run the script that it is given, or None."""
    python = Path(program).name.startswith("python")
    named = next((number for number, word in enumerate(arguments) if word == "-m" or not word.startswith("-")), None)
    if named is None:
        return None
    script = arguments[named]
    if script == "-m":
        package = next(iter(arguments[named + 1 : named + 2]), "").partition(".")[0]
        known = not python or program != sys.executable or find_spec(package or "-") or any(cwd.glob(f"{package}*"))
        return None if known else ConfigError(f"{place}: there is no module {package}.", hint=f"Not in {program}.")
    if not script.endswith(SCRIPTS):
        return None
    if not (cwd / script).is_file():
        return ConfigError(f"{place}: there is no file {cwd / script}.", hint=f"It is relative to {cwd}.")
    return _problem_of_syntax(place, cwd / script) if python else None


def _problem_of_syntax(place: str, path: Path) -> ConfigError | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(path.read_bytes(), str(path))
    except OSError as refused:
        return ConfigError(f"{place}: {path} cannot be read: {refused.strerror}.")
    except (SyntaxError, ValueError) as wrong:
        at = f"line {getattr(wrong, 'lineno', 0)}, column {getattr(wrong, 'offset', 0)}"
        what = f"{at}: SyntaxError: {wrong.msg}" if isinstance(wrong, SyntaxError) else str(wrong)
        return ConfigError(f"{place}: {path}, {what}.")
    return None
