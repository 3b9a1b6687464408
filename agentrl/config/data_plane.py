"""Defines the sections of the data plane: model, environments, tools, sampling, engines, training.

Invariant: a run has a data plane if and only if it has environments. The rules between sections are in
`contradictions.py`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from agentrl.adapters.player import OWN_PYTHON
from agentrl.adapters.sources import source_of
from agentrl.config import own_tool_servers
from agentrl.config.context import Context, Repetition
from agentrl.config.curriculum import CurriculumStage, Difficulty
from agentrl.config.engines import Engines
from agentrl.config.field_types import (
    LONGEST_S,
    NEXT_STEP,
    NO_UNIT,
    Bytes,
    Command,
    Env,
    Flag,
    Natural,
    Number,
    Positive,
    Seconds,
    Secret,
    Section,
    Tunable,
    Words,
    named,
    problems_in_one_of,
    read_by,
)
from agentrl.config.other_models import Judge, OtherModel, Summaries
from agentrl.config.reward_watch import RewardWatch
from agentrl.config.sampling import Evaluation, Sampling
from agentrl.config.secrets import is_reference, names_a_secret
from agentrl.config.tool_packages import PackagesOrWords
from agentrl.config.tool_sandbox import RequiredSandbox, Sandbox, SandboxOrKind
from agentrl.config.training import Training
from agentrl.policies.freshness import Strategy
from agentrl.policies.outcomes import Blame
from agentrl.policies.replay_verdicts import ToolEffect
from agentrl.protocol.specs import Role

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_ADDRESS = re.compile(r"https?://[^\s/]")
MCPAPI_ADDRESS = re.compile(r"([^?#\s]+?/mcpapi)(?:/server/([^/?#\s]+))?/?")
_TAG_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_SECRET_HEADERS = frozenset(["authorization", "cookie", "proxy-authorization"])

_AT_ADMISSION = Tunable(owner=Role.STEWARD)
_SCIENTIFIC_ADMISSION = Tunable(owner=Role.STEWARD, scientific=True)
_NEXT_CLAIM = Tunable("next claim", Role.SAMPLER)
_SCIENTIFIC_CLAIM = Tunable("next claim", Role.SAMPLER, scientific=True)


_LIVE = read_by("sampler", live=True)

SHIPPED_AGENTS = ("single_turn_agent", "tool_agent")
SHIPPED_SCORERS = ("exact", "math")
"""The scorers that are registered without user code."""


class Images(Section):
    """How images are shown to a model that reads them."""

    max_pixels: Annotated[Natural, read_by("sampler", "trainer")] = 0
    """Larger images are reduced to this many pixels; 0: the limit in the model's directory. The limit decides how many
    tokens an image has."""
    max_bytes: Annotated[Bytes, Field(le=12 << 20), read_by("steward", "sampler")] = 8 << 20
    """The largest file of an image; larger ones are refused."""
    origins: Annotated[Words, read_by("steward", "sampler")] = ()
    """Where images may be fetched from, such as `https://images.example.org`; empty: from no address."""


class Model(Section):
    """The model that is trained."""

    path: Annotated[str, read_by("trainer")] = ""
    """A directory in the layout of Hugging Face (config.json, safetensors, tokenizer.json); relative to the run
    file."""
    build: Annotated[Literal["", "tiny"], read_by("trainer")] = ""
    """`tiny` builds a model of half a million parameters with a tokenizer of its own, for two processor cores."""
    template: Annotated[dict[str, Any], read_by("sampler", "trainer")] = Field(default_factory=dict)
    """Variables of the model's own chat template, such as `enable_thinking: false` or `reasoning_effort: low`. `date`
    sets the date of today in the template; the default is 2025-01-01."""
    images: Images = Images()
    """How images are shown to a model that reads them, and where images may come from."""

    @model_validator(mode="after")
    def _one_origin(self) -> Model:
        if problem := problems_in_one_of(self, ("path", "build")):
            raise ValueError(problem)
        return self


# fmt: off
Parser = Literal[
    "openai", "qwen", "qwen_coder", "minicpm", "llama", "pythonic", "mistral", "gemma", "gpt_oss", "deepseek"
]
# fmt: on


class Environment(Section):
    """A family of tasks with its tools, agent loop and scorer."""

    code: Annotated[str, read_by("steward", "sampler")] = ""
    """A Python file, relative to the run file, that declares this environment with `agentrl.Environment`; its
    declaration sets the keys that are not given here. Or an environment of another package, such as
    `gymnasium:FrozenLake-v1`. `NAME: FILE.py` is short for `NAME: {code: FILE.py}`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """With a `code` of another package: the arguments of its constructor, such as `{is_slippery: false}`."""
    rows: Positive = 512
    """With a `code` of another package that makes its tasks: how many it makes for training."""
    held_out: Natural = 64
    """With a `code` of another package that makes its tasks: how many it makes for evaluation."""
    python: str = "{python}"
    """With a `code`: the Python that has its packages; `{python}` is the Python of the run. With any other Python, the
    agent and scorers of a Python file run in a separate process."""
    sandbox: Annotated[RequiredSandbox, read_by("sampler", within={"kind": read_by("sampler", "steward")})] = Sandbox(
        kind="none"
    )
    """With a `code`: the sandbox of a separate process for its agent and scorers, or for the program of another
    package. It limits what they may read, write, reach and use: `none`, `process`, or a section with the keys of a tool
    server's sandbox, in which `required` is `true` by default."""
    resumable: Flag = False
    """With a `code` in a separate process: another sampler may continue its unfinished episodes, because its agent
    makes the same requests whenever it gets the same answers. The file declares this by `@rl.agent(resumable=True)`."""
    dataset: Annotated[str, read_by("steward", "sampler", "trainer")]
    """File or directory of the tasks to train on: JSONL, JSON, Parquet, or a dataset on disk; relative to the run
    file. Or a dataset of a hub: `hub:NAME`, `hub:NAME:CONFIGURATION`."""
    evaluation: Annotated[str, read_by("steward", "sampler", "trainer")] = ""
    """The same for held-out tasks; empty: no evaluation."""
    made_by: Annotated[str, NO_UNIT] = ""
    """The command that makes these files. It is shown if they are missing; it is never run."""
    tools: Annotated[Words, read_by("steward", "sampler")] = ()
    """Names of tool servers (`tools`) that its episodes may use."""
    agent: Annotated[str, read_by("steward", "sampler")] = "tool_agent"
    """The agent loop, by its registered name; a task may name another."""
    scorer: Annotated[str, read_by("steward", "sampler")] = "exact"
    """The scorer, by its registered name; a task may name another."""
    watchers: Annotated[Words, read_by("steward", "sampler")] = ()
    """Scorers that do not train: their scores are stored with each record, and `reward_watch` compares them with the
    score. In an environment of a file: names of its metrics, or scorers."""
    answer_schema: Annotated[str, read_by("steward")] = "answer"
    """Where the answer is: `boxed`, or the name of a tag (`<answer>...</answer>`); empty: the whole text."""
    parser: Annotated[Parser, read_by("sampler", "trainer")] = "qwen"
    """How the model writes tool calls; a sampler warns if the model's chat template writes them differently."""
    history: Literal["sampled", "template"] = "sampled"
    """The form in which the model gets its earlier turns: as the tokens that it sampled, or as its chat template writes
    them now, perhaps without thoughts. A prompt that differs from the sampled tokens is a branch."""
    system: Annotated[str, read_by("sampler", "trainer")] = ""
    """The system prompt."""
    context: Context = Context()
    """What is left out of a conversation that is too long."""
    repetition: Repetition = Repetition()
    """When an episode counts as repeating itself, and what happens then."""
    max_turns: Positive = 8
    """Model calls of an episode. After them it ends at the limit of the policy."""
    epochs: Annotated[Positive, read_by("steward", "trainer")] = 1
    """How often the dataset is used."""
    difficulty: Annotated[Difficulty | None, read_by("steward")] = None
    """From the second epoch on: the mean scores between which a row of the dataset is sampled again."""
    shuffle: Annotated[Natural, read_by("steward")] = 0
    """The seed for the order of the tasks within an epoch."""
    weight: Annotated[Number, Field(gt=0, le=1_000), read_by("steward")] = 1.0
    """Its share of the mix, relative to the weights of the other environments."""
    bound: Annotated[Natural | None, read_by("steward", "trainer")] = None
    """A staleness bound of its own, instead of `training.bound`."""
    hard_bound: Annotated[Natural | None, read_by("steward", "trainer")] = None
    """A hard bound of its own, instead of `training.hard_bound`."""
    strategy: Annotated[Strategy | None, read_by("steward", "trainer")] = None
    """A strategy of its own at the bound, instead of `training.strategy`."""

    @property
    def is_apart(self) -> bool:
        """Whether its Python file runs in a process of its own."""
        own = self.python != OWN_PYTHON or self.sandbox.kind != "none"
        return bool(self.code) and source_of(self.code) is None and own

    @model_validator(mode="after")
    def _of_a_file(self) -> Environment:
        if self.resumable and not self.is_apart:
            raise ValueError("resumable is for an environment in a separate process: it needs a python or a sandbox")
        source = source_of(self.code)
        if self.sandbox.kind != "none" and (not self.code or (source is not None and not source.facts.program)):
            raise ValueError("sandbox is for code that runs in a separate process, unlike this; tools have their own")
        return self


class HealthCheck(Section):
    """How to check that a tool server works."""

    tool: str = ""
    """A tool that is called every few seconds; it must change nothing. Empty: the server lists its tools."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """The arguments of the call."""

    @model_validator(mode="after")
    def _of_a_tool(self) -> HealthCheck:
        if self.arguments and not self.tool:
            raise ValueError("arguments need a tool")
        return self


class ToolServer(Section):
    """An MCP server that the toolboxes use."""

    command: Command = ()
    """The program and its arguments, for a server over stdio. `{python}` and `{run_dir}` are replaced."""
    functions: str = ""
    """Instead of a command: a Python file whose public functions with docstrings are the tools; relative to the run
    file."""
    shipped: own_tool_servers.Shipped = ""
    """Instead of a command: a server that agentrl provides. `python` runs code, `files` edits files in a workspace,
    `calculator` computes exactly, `search` finds texts in a corpus."""
    corpus: Words = ()
    """With `shipped: search`: directories and files (.md, .txt, .jsonl) to search; relative to the run file."""
    workspace: str = ""
    """With `shipped: files`: a directory that each session gets a copy of; relative to the run file."""
    python: PackagesOrWords = None
    """Not with an address: Python packages that are installed for this server, in a virtual environment of its own."""
    npm: PackagesOrWords = None
    """With `command`: npm packages that are installed for this server, in a directory of its own."""
    cwd: str = ""
    """With `command`: working directory, relative to the run file; empty means the directory of the run file."""
    url: str = ""
    """The address of a server over streamable HTTP."""
    sse: str = ""
    """The address of a server over SSE, the older transport of MCP."""
    mcpapi: str = ""
    """The address of tools over plain HTTP, such as another run's: `http://HOST:PORT/mcpapi` for all its tools, named
    SERVER.TOOL, `http://HOST:PORT/mcpapi/server/SERVER` for those of one server."""
    token: Secret = None
    """With an address: a reference to its token, `env:NAME` or `file:PATH`; sent as `Authorization: Bearer`."""
    headers: Env = Field(default_factory=dict)
    """With an address: headers of every request. Secrets are references: `env:NAME` or `file:PATH`."""
    env: Env = Field(default_factory=dict)
    """Environment of the server, in addition to the few inherited variables. Secrets are references: `env:NAME` or
    `file:PATH`."""
    sandbox: SandboxOrKind = Sandbox()
    """What the server may read, write, reach and use: `none`, `process`, or a section with limits."""
    session: Annotated[Literal["shared", "keyed", "process"], read_by("steward", "sampler", "toolbox")] = "process"
    """`shared`: stateless. `keyed`: the server separates episodes by a key in the metadata of each call. `process`: one
    process per episode, from a pool."""
    pool: Positive = 4
    """Processes of a server whose session is `process`: as many episodes use it at once. `agentrl why` shows a pool
    that is too small."""
    start_s: Seconds = 60.0
    """How long a start may take. Long by default, because npx and uvx unpack packages first."""
    timeout_s: Annotated[Seconds, read_by("steward", "sampler", "toolbox")] = 30.0
    """How long one call may take."""
    calls: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 0
    """Concurrent calls of all episodes; further calls wait. 0: 32, or 16 behind an address."""
    queue_s: Annotated[Seconds, Field(le=40)] = 30.0
    """How long a call waits for other calls before it is refused (HTTP 429). Samplers repeat it for ten minutes."""
    timeout_means: Blame = "infrastructure"
    """Who is to blame if a call takes too long."""
    crash_means: Blame = "infrastructure"
    """Who is to blame if the server dies during a call."""
    try_again: Annotated[Flag, read_by("sampler", "toolbox")] = False
    """A call that failed for infrastructure is repeated once in a new session. If it fails in the same way, and the
    tool works for other episodes, the policy is to blame. Only for tools that may be called twice."""
    effects: Annotated[dict[str, ToolEffect], read_by("steward", "sampler", "toolbox")] = Field(default_factory=dict)
    """What a call changes, by the tool's name; `*` stands for all others. `pure`: nothing. `session` (default): only
    the session of its episode. `outside`: something that outlives the session; a replay of it needs consent by
    name."""
    examples: Annotated[dict[str, dict[str, Any]], NO_UNIT] = Field(default_factory=dict)
    """By the tool's name: arguments with which `agentrl up` calls it once before the run, whatever the call changes."""
    block: Words = ()
    """Tools of the server that are not offered."""
    health: HealthCheck = HealthCheck()
    """A call that shows that the server works. A server with `session: process` gets a process of its own for it."""
    result_max_chars: Positive = 16_384
    """A longer result keeps its beginning and its end."""

    @property
    def address(self) -> str:
        """The address of a server that the toolbox does not start; empty for a server with a command."""
        return self.url or self.sse or self.mcpapi

    @property
    def start_command(self) -> tuple[str, ...]:
        """The command of a server over stdio; empty for a server behind an address."""
        return self.command or own_tool_servers.command_of(
            self.functions,
            self.shipped,
            corpus=self.corpus,
            workspace=self.workspace,
            timeout_s=self.timeout_s,
            has_packages=self.python is not None,
        )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_shipped(cls, value: Any) -> Any:
        return own_tool_servers.with_defaults(value)

    @model_validator(mode="after")
    def _one_transport(self) -> ToolServer:
        if problem := problems_in_one_of(self, ("command", "functions", "shipped", "url", "sse", "mcpapi")):
            raise ValueError(problem)
        if problem := own_tool_servers.problem_of(
            self.functions,
            self.shipped,
            corpus=self.corpus,
            workspace=self.workspace,
            session=self.session,
            sandbox=self.sandbox.kind,
            has_npm=self.npm is not None,
        ):
            raise ValueError(problem)
        if self.address and not _ADDRESS.match(self.address):
            raise ValueError(f"{self.address!r} is no address; one begins with http:// or https://")
        if self.mcpapi and not MCPAPI_ADDRESS.fullmatch(self.mcpapi):
            raise ValueError(f"{self.mcpapi!r} must end with /mcpapi, or with /mcpapi/server/SERVER")
        if self.mcpapi and self.session == "keyed":
            raise ValueError("session: keyed needs an MCP server, because /mcpapi has sessions of its own; use process")
        if self.address and self.cwd:
            raise ValueError("cwd is for a server with a command")
        if self.address and self.sandbox != Sandbox():
            raise ValueError("sandbox is for a server with a command; one behind an address runs elsewhere")
        if self.python and self.npm:
            raise ValueError("has python and npm; a server has packages of one kind")
        if (self.python or self.npm) and (self.address or self.sandbox.kind == "container"):
            raise ValueError("python and npm are for a server with a command whose sandbox is not a container")
        if not self.address and (self.token or self.headers):
            raise ValueError("token and headers are for a server with an address; others get their secrets by env")
        if self.try_again and "outside" in self.effects.values():
            outside = ", ".join(name for name, effect in self.effects.items() if effect == "outside")
            raise ValueError(f"try_again calls tools twice, and effects says that {outside} acts outside the session")
        for name, value in self.headers.items():
            if not _HEADER.fullmatch(name) or any(char in value for char in "\r\n"):
                raise ValueError(f"headers has {name!r}, which is not the name and the value of one header line")
            if (name.lower() in _SECRET_HEADERS or names_a_secret(name)) and not is_reference(value):
                raise ValueError(f"headers.{name} must be a reference to a secret, env:NAME or file:PATH")
        return self


class Rollout(Section):
    """Samplers."""

    samplers: Annotated[Natural, NO_UNIT] = 1
    """How many sampler units there are."""
    concurrency: Annotated[int, Field(strict=True, ge=0, le=100_000), Tunable(owner=Role.SAMPLER)] = 64
    """Episodes that each sampler runs at once."""
    max_in_flight: Annotated[Positive, _AT_ADMISSION, read_by("steward", "trainer")] = 256
    """Episodes of the whole run that may be open at once."""
    max_turns: Annotated[Natural, _SCIENTIFIC_CLAIM] = 0
    """Model calls of an episode, instead of `environments.NAME.max_turns`; 0 leaves it to the environment."""
    episode_s: Annotated[
        Number, Field(ge=1, le=LONGEST_S), _SCIENTIFIC_CLAIM, read_by("steward", "sampler", "trainer", "toolbox")
    ] = 600.0
    """How long an episode may take. Waiting for an engine, a toolbox or a place in it does not count."""
    episode_timeout_means: Annotated[Blame, _SCIENTIFIC_CLAIM] = "policy"
    """How an episode that takes longer than `episode_s` counts. `policy`: it reached a limit of the policy and is
    scored, unless the model generated no token. `infrastructure`: it is sampled again, which favours short episodes."""
    call_s: Annotated[Number, Field(ge=0.1, le=LONGEST_S), _NEXT_CLAIM, read_by("steward", "sampler")] = 120.0
    """How long one model call may take."""
    tool_s: Annotated[Number, Field(ge=0, le=LONGEST_S), _NEXT_CLAIM] = 0.0
    """How long one try of a tool call may take; 0: no limit besides that of the tool server, which always applies."""
    engine_max_lag: Natural = 2
    """How many versions an engine may be behind the newest served one. Engines further behind get no calls."""
    code: Words = ()
    """Python files that register own agent loops and scorers; relative to the run file."""
    agent_config: Annotated[str, NO_UNIT] = ""
    """An agent configuration file of AgentCPM. It is read as `models`, `judges` and `summaries`, which have priority;
    relative to the run file."""


class Retention(Section):
    """How long data is kept, and how much disk space stays free."""

    versions: Annotated[Positive, named("keep_versions", NEXT_STEP), read_by("trainer")] = 4
    """How many published versions keep their files, besides those that an engine, a checkpoint or an evaluation
    needs."""
    details_s: Annotated[Number, Field(ge=0, le=315_360_000), _AT_ADMISSION] = 0.0
    """How many seconds after the admission of a consumed task its calls, turns and tool calls are kept; 0: for ever."""
    data_max: Annotated[Bytes, named("data_max_bytes", _AT_ADMISSION)] = 0
    """If the database without images of tasks is larger than this, calls, turns and tool calls of the oldest consumed
    tasks are removed at any age; 0: no limit."""
    disk_reserve: Annotated[Bytes, named("disk_reserve_bytes", _AT_ADMISSION)] = 512 << 20
    """Free bytes on the disks of the database and of the run directory. Below them no task is admitted."""


class DataPlane(Section):
    """The sections of the data plane in a run file."""

    model: Model | None = None
    """The model that is trained."""
    environments: Annotated[dict[str, Environment], read_by("sampler")] = Field(default_factory=dict)
    """Families of tasks, by name. Without any the run has no data plane."""
    tools: Annotated[dict[str, ToolServer], read_by("toolbox")] = Field(default_factory=dict)
    """MCP servers, by name."""
    sampling: Sampling = Sampling()
    """How episodes are sampled."""
    rollout: Annotated[Rollout, read_by("sampler")] = Rollout()
    """Samplers and their limits."""
    engines: Annotated[Engines, read_by("engine")] = Engines()
    """Inference."""
    training: Annotated[Training, read_by("trainer")] = Training()
    """The trainer."""
    evaluation: Annotated[Evaluation, read_by("steward")] = Evaluation()
    """Evaluation."""
    retention: Annotated[Retention, read_by("steward")] = Retention()
    """How long data is kept."""
    curriculum: Annotated[tuple[CurriculumStage, ...], read_by("steward")] = ()
    """Stages with a mix of their own, one after another. Empty: the weights of the environments."""
    reward_watch: Annotated[RewardWatch, read_by("steward")] = RewardWatch()
    """Signs that the reward is exploited."""
    models: Annotated[dict[str, tuple[OtherModel, ...]], _LIVE] = Field(default_factory=dict)
    """Models besides the one that is trained, by name: services in the order in which they are asked. Changes of this
    section and the two after it need no restart."""
    judges: Annotated[dict[str, Judge], _LIVE] = Field(default_factory=dict)
    """Scorers that ask another model, by the name that environments and tasks use."""
    summaries: Annotated[Summaries, _LIVE] = Summaries()
    """Long results of tools are summarised by another model before the policy reads them."""


Problem = tuple[tuple[str, ...], str]


def problem_of_schema(schema: str) -> str:
    """Why this is not an answer schema; empty if it is one. An empty schema means the whole text."""
    if not schema or _TAG_NAME.fullmatch(schema):
        return ""
    return f"is {schema!r}; it must be boxed, or a tag's name such as answer"
