"""A run file becomes a configuration, or an error that names the mistake and its place."""

from __future__ import annotations

import contextlib
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import introspection, show
from agentrl.config.contradictions import RESERVED_GROUPS
from agentrl.config.load import RESERVED_VARIABLES, Loaded, load_config
from agentrl.config.placeholders import PLACEHOLDERS
from agentrl.config.run import RunConfig
from agentrl.config.serialization import config_from_plain
from agentrl.errors import ConfigError, ExitCode
from agentrl.host.spawn_environment import Home, filled


@pytest.fixture
def load(tmp_path: Path):
    """Loads a run file from its text, with nothing else in the environment."""

    def load(text: str, sets: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Loaded:
        path = tmp_path / "run.yaml"
        path.write_text(textwrap.dedent(text))
        return load_config(path, sets=sets, environ=environ or {})

    return load


@pytest.fixture
def mistakes(load):
    """The mistakes of a run file, one sentence per mistake."""

    def mistakes(text: str, sets: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(text, sets, environ)
        assert caught.value.exit_code is ExitCode.CONFIG
        lines = str(caught.value).split("\n  ")
        return lines[1:] if len(lines) > 1 else lines

    return mistakes


WEB = """\
name: demo
sidecars:
  web:
    command: python -m http.server
    count: 2
"""


def test_the_smallest_run_file_is_under_a_dozen_lines(load):
    text = "name: tiny\nsidecars:\n  web:\n    command: python -m http.server\n"
    assert text.count("\n") < 12
    config = load(text).config
    assert config.sidecars["web"].command == ("python", "-m", "http.server")
    assert config.sidecars["web"].count == 1


def test_precedence_is_command_line_environment_file_default(load):
    key = "sidecars.web.count"
    variable = {"AGENTRL_SIDECARS__WEB__COUNT": "3"}
    without = WEB.replace("    count: 2\n", "")
    seen = {}
    for name, (text, sets, environ) in {
        "default": (without, (), {}),
        "file": (WEB, (), {}),
        "environment": (WEB, (), variable),
        "--set": (WEB, [f"{key}=4"], variable),
    }.items():
        loaded = load(text, sets, environ)
        seen[name] = (loaded.config.sidecars["web"].count, loaded.sources[key], key in loaded.given)
    assert seen == {
        "default": (1, "default", False),
        "file": (2, "run.yaml:5", True),
        "environment": (3, "environment AGENTRL_SIDECARS__WEB__COUNT", True),
        "--set": (4, "--set sidecars.web.count", True),
    }


def test_every_value_has_exactly_one_source(load):
    loaded = load(WEB)
    keys = [".".join(path) for path, _ in introspection.leaves(loaded.config.model_dump(mode="json"))]
    assert sorted(loaded.sources) == sorted(keys)
    assert set(loaded.given) == {"name", "sidecars.web.command", "sidecars.web.count"}


def test_variables_find_names_with_dashes_and_keep_the_case_of_free_names(load):
    loaded = load(
        "name: demo\nsidecars:\n  my-web:\n    command: x\n",
        environ={"AGENTRL_SIDECARS__MY_WEB__COUNT": "3", "AGENTRL_SIDECARS__MY_WEB__ENV__OMP_NUM_THREADS": "1"},
    )
    assert loaded.config.sidecars["my-web"].count == 3
    assert loaded.config.sidecars["my-web"].env == {"OMP_NUM_THREADS": "1"}


def test_section_that_is_set_replaces_the_section_of_the_file(load):
    loaded = load(WEB, ["sidecars.web={command: [sleep, '1']}"])
    assert loaded.config.sidecars["web"].command == ("sleep", "1")
    assert loaded.config.sidecars["web"].count == 1
    assert loaded.sources["sidecars.web.command"] == "--set sidecars.web"


def test_unknown_variable_of_one_word_is_ignored(load):
    loaded = load(WEB, environ={"AGENTRL_NAME": "other", "AGENTRL_WHATEVER": "x", "AGENTRL_SUPERVISION": "x"})
    assert loaded.config.name == "other"
    assert loaded.sources["name"] == "environment AGENTRL_NAME"


def test_variables_that_mark_a_process_are_never_configuration(load):
    environ = dict.fromkeys(RESERVED_VARIABLES, "nonsense")
    assert load(WEB, environ=environ).config == load(WEB).config
    words = {name.removeprefix("AGENTRL_").lower() for name in RESERVED_VARIABLES}
    whole = introspection.Shape(RunConfig)
    values = {key for key in whole.keys if not (whole.child(key).is_table or whole.child(key).section)}
    assert values == {"name", "dir", "inherit", "extends", "logs", "curriculum"}
    assert words.isdisjoint(values)


def test_relative_paths_are_relative_to_the_run_file(load, tmp_path):
    text = WEB + "dir: ../results\ncoordinator: {state_dir: state}\n"
    config = load(text).config
    assert config.dir == str(tmp_path.parent / "results")
    assert config.coordinator.state_dir == str(tmp_path / "state")
    assert config.sidecars["web"].cwd == str(tmp_path)
    assert load(WEB).config.dir == str(tmp_path / "runs" / "demo")


def test_home_of_an_unknown_user_is_a_directory_that_does_not_exist(load, tmp_path):
    assert load(WEB + "dir: ~no-such-user/results\n").config.dir == str(tmp_path / "~no-such-user/results")


def test_empty_section_equals_a_missing_section(load):
    assert load(WEB + "alerts:\nsupervision:\n").config == load(WEB).config


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("supervsion: {}", "run.yaml:6: unknown key supervsion; did you mean supervision?"),
        (
            "supervision:\n  heartbeat: 1",
            "run.yaml:7: unknown key supervision.heartbeat; did you mean supervision.heartbeat_s?",
        ),
        (
            "alerts:\n  sinks:\n    mail: {to: a@b, frm: c@d}",
            "run.yaml:8: unknown key alerts.sinks.mail.frm; did you mean alerts.sinks.mail.from?",
        ),
        ("mongo:\n  zzz: 1", "run.yaml:7: unknown key mongo.zzz; known are: embedded, url."),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(mistakes, lines, sentence):
    assert sentence in mistakes(WEB + lines)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("    count: -1", "run.yaml:5: sidecars.web.count must be a whole number from 0 to 10000, not -1."),
        ("    count: true", "run.yaml:5: sidecars.web.count must be a whole number from 0 to 10000, not true."),
        ("    count: '3'", "run.yaml:5: sidecars.web.count must be a whole number from 0 to 10000, not '3'."),
        ("    life: servce", "run.yaml:5: sidecars.web.life must be one of service, job, not 'servce'."),
        ("    speaks: yes", "run.yaml:5: sidecars.web.speaks must be true or false, not 'yes'."),
        ("    start_deadline_s: 0", "run.yaml:5: sidecars.web.start_deadline_s must be a number above 0 and up to"),
        ("    log_max: 12 parsecs", "run.yaml:5: sidecars.web.log_max must be a number of bytes such as 1048576 or"),
        (
            "    resources: {gpus: 1.5}",
            "run.yaml:5: sidecars.web.resources.gpus must be a whole number from 0 to 1000, or a share",
        ),
        ("    ready: {}", "run.yaml:5: sidecars.web.ready needs exactly one of exec, http, tcp, but has none"),
        ("    ready: {tcp: a:1, http: 'http://b'}", "but has http and tcp."),
        ("    ready: {tcp: nowhere}", "run.yaml:5: sidecars.web.ready: tcp must be host:port"),
        ("    env: {A: true}", "run.yaml:5: sidecars.web.env.A must be text."),
        ("    ranks: 2\n    count: 3", "run.yaml:3: sidecars.web: count contradicts ranks"),
        ("    ranks_per_host: 2", "run.yaml:3: sidecars.web: ranks_per_host needs ranks"),
        ("    ranks: 2\n    resources: {gpus: 0.5}", "run.yaml:3: sidecars.web: resources.gpus must be a whole number"),
        ("    ranks: 2\n    env: {RANK: '0'}", "run.yaml:3: sidecars.web: env may not set RANK"),
        ("hosts: {b: {private: '10.0.0.1:80'}}", "hosts.b.private must be an address such as 10.0.0.2"),
        ("hosts: {b: {private: 0.0.0.0}}", "hosts.b.private must be an address such as 10.0.0.2"),
        ("    env: {AGENTRL_RUN: x}", "run.yaml:3: sidecars.web: env may not set AGENTRL_RUN"),
        ("    after: [wep]", "run.yaml:5: sidecars.web.after names the unknown group 'wep'; did you mean web?"),
        ("    near: wep", "run.yaml:5: sidecars.web.near names the unknown group 'wep'; did you mean web?"),
        ("    spread: no", "sidecars.web.spread must be"),
        ("    ranks: 2\n    spread: yes", "sidecars.web: spread and near are not for a gang"),
        ("    after: mongo", "run.yaml:5: sidecars.web.after names mongo, but mongo.embedded is not true."),
        ("    after: web", "run.yaml:5: sidecars.web.after makes a circle: web waits for web."),
        ("supervision: {suspect_after_s: 1}", "run.yaml:5: supervision: suspect_after_s must be at least twice heart"),
        ("supervision: {dead_after_s: .inf}", "run.yaml:5: supervision.dead_after_s must be a number from 0.01 to"),
        ("coordinator: {listen: 'http://x'}", "coordinator.listen must be empty or an address such as tcp://0.0.0.0"),
        ("coordinator: {listen: 'tcp://x:65535'}", "coordinator.listen must have a port of at most 65533"),
        ("name_of_run: x", "run.yaml:5: unknown key name_of_run; "),
    ],
)
def test_error_of_a_value_names_line_and_allowed_values(mistakes, lines, sentence):
    text = "name: demo\nsidecars:\n  web:\n    command: x\n" + lines
    found = mistakes(text)
    assert any(sentence in one for one in found), found


def test_error_of_a_value_names_its_variable_or_option(mistakes):
    found = mistakes(WEB, ["supervision.max_deaths=many", "alerts.repet_s=3"], {"AGENTRL_SIDECARS__WEB__COUNT": "few"})
    assert found == ["--set: unknown key alerts.repet_s; did you mean alerts.repeat_s?"]
    found = mistakes(WEB, ["supervision.max_deaths=many"], {"AGENTRL_SIDECARS__WEB__COUNT": "few"})
    assert found == [
        "environment AGENTRL_SIDECARS__WEB__COUNT: sidecars.web.count must be a whole number from 0 to 10000, "
        "not 'few'.",
        "--set supervision.max_deaths must be a whole number from 1 to 1000, not 'many'.",
    ]


def test_error_names_a_set_key_once_and_lists_choices(mistakes):
    assert mistakes(WEB, ["engines.kind=foo"]) == [
        "--set engines.kind must be embedded, sglang, vllm or openai, not 'foo'."
    ]
    (large,) = mistakes(WEB, ["sidecars.web.drain_grace_s=-1"])
    assert "e+" not in large


def test_all_mistakes_are_in_one_error(mistakes):
    assert sorted(mistakes("sidecars:\n  web: {count: -1}\nmongo: {embeded: true}\n")) == [
        "run.yaml:1: the run needs the key name.",
        "run.yaml:2: sidecars.web needs the key command.",
        "run.yaml:2: sidecars.web.count must be a whole number from 0 to 10000, not -1.",
        "run.yaml:3: unknown key mongo.embeded; did you mean mongo.embedded?",
    ]


@pytest.mark.parametrize("name", [*sorted(RESERVED_GROUPS), "web-1", "Web", "1st", "a" * 41, "ümlaut"])
def test_group_cannot_have_a_reserved_or_ambiguous_name(mistakes, name):
    (sentence,) = mistakes(f"name: demo\nsidecars:\n  {name}: {{command: x}}\n")
    assert sentence.startswith(f"run.yaml:3: sidecars.{name} is no name of a group")


@pytest.mark.parametrize("name", ["Demo", "-demo", "a" * 41, "a/b", "''"])
def test_run_name_must_be_a_directory_name(mistakes, name):
    (sentence,) = mistakes(f"name: {name}\n")
    assert sentence.startswith("run.yaml:1: name must be a name of 1 to 40 small letters")


def test_error_shows_the_whole_circle_of_waits(mistakes):
    groups = {"a": "b", "b": "c", "c": "a", "d": "a"}
    lines = "".join(f"  {name}: {{command: x, after: {other}}}\n" for name, other in groups.items())
    (sentence,) = mistakes(f"name: demo\nsidecars:\n{lines}")
    assert "makes a circle: a waits for b waits for c waits for a." in sentence


def test_alert_rules_must_name_an_existing_group(mistakes, load):
    rule = "alerts: {rules: [{name: r, metric: m, above: 1, of: OF}]}\n"
    (sentence,) = mistakes(WEB + rule.replace("OF", "wep"))
    assert sentence == "run.yaml:6: alerts.rules.0.of names no group or unit of the run, 'wep'; did you mean web?"
    assert load(WEB + rule.replace("OF", "web-1")).config.alerts.rules[0].of == "web-1"


def test_only_built_in_rules_can_be_disabled_and_their_names_are_reserved(mistakes, load):
    (sentence,) = mistakes(WEB + "alerts: {disable: [unit-fatal, unit-hang]}\n")
    assert sentence == ("run.yaml:6: alerts.disable names no built-in rule, 'unit-hang'; did you mean unit-hung?")
    own = "alerts: {disable: [OFF], rules: [{name: unit-hung, metric: m, above: 1, of: web}]}\n"
    (sentence,) = mistakes(WEB + own.replace("OFF", ""))
    assert sentence.startswith("run.yaml:6: alerts.rules.0.name is that of a built-in rule, 'unit-hung'")
    assert load(WEB + own.replace("OFF", "unit-hung")).config.alerts.rules[0].name == "unit-hung"


@pytest.mark.parametrize(
    ("rule", "part"),
    [
        ("{above: 1, below: 2}", "needs exactly one of above, below, but has above and below"),
        ("{}", "needs exactly one of above, below, but has none"),
        ("{above: 1, clear: 2}", "clear must be at most above, 1, not 2"),
        ("{below: 1, clear: 0.5}", "clear must be at least below, 1, not 0.5"),
        ("{below: 0, clear: -0.5}", "clear must be at least below, 0, not -0.5"),
    ],
)
def test_alert_rule_has_one_threshold_and_clears_on_its_good_side(mistakes, rule, part):
    text = f"name: demo\nsidecars: {{web: {{command: x}}}}\nalerts:\n  rules:\n  - {rule[:-1]}"
    text += f"{', ' if len(rule) > 2 else ''}name: r, metric: m, of: web}}\n"
    assert any(part in one for one in mistakes(text))


@pytest.mark.parametrize("argument", ["", "a", "=3", "a..b=3", ".a=1"])
def test_set_needs_key_and_value(load, argument):
    with pytest.raises(ConfigError, match=r"not KEY=VALUE.*Try --set"):
        load(WEB, [argument])


def test_a_list_is_set_as_a_whole(load):
    with pytest.raises(ConfigError, match="set it as a whole"):
        load(WEB, ["sidecars.web.command.0=ls"])


def test_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"There is no run file .*nothing\.yaml"):
        load_config(tmp_path / "nothing.yaml", environ={})
    (tmp_path / "latin.yaml").write_bytes("name: größe".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"not UTF-8"):
        load_config(tmp_path / "latin.yaml", environ={})


def test_run_without_a_file_needs_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(sets=["name=demo"], environ={}).config.dir == str(tmp_path / "runs" / "demo")
    with pytest.raises(ConfigError, match="no run file"):
        load_config(environ={})


@given(st.text(max_size=200))
def test_any_text_is_a_configuration_or_a_config_error(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "run.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(ConfigError):
        load_config(path, environ={})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "name",
                        "sidecars",
                        "web",
                        "command",
                        "ready",
                        "http",
                        "alerts",
                        "rules",
                        "of",
                        "mongo",
                        "url",
                        "env",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_shape_of_values_is_a_configuration_or_a_config_error(plain):
    if isinstance(plain, dict):
        with contextlib.suppress(ConfigError):
            config_from_plain(plain)


@pytest.mark.parametrize(
    "line",
    [
        r'command: ["ls", "a\0b"]',
        r'command: "ls a\0b"',
        r'env: {A: "a\0b"}',
        r'cwd: "a\0b"',
        r'ready: {http: "http://a\0b"}',
        r'live: {exec: ["ls", "\ud800"]}',
    ],
)
def test_text_that_no_process_can_receive_is_refused(mistakes, line):
    command = "" if line.startswith("command") else "    command: ls\n"
    (mistake,) = mistakes(f"name: demo\nsidecars:\n  web:\n{command}    {line}\n")
    assert "without NUL" in mistake
    assert "sidecars.web" in mistake


def test_value_for_an_unknown_group_names_its_source_and_the_nearest_group(mistakes):
    found = mistakes(WEB, environ={"AGENTRL_SIDECARS__WEBB__COUNT": "2"})
    assert found == ["environment AGENTRL_SIDECARS__WEBB__COUNT: there is no group webb; did you mean web?"]
    assert mistakes(WEB, ["sidecars.db.count=2"]) == ["--set sidecars.db.count: there is no group db; known are: web."]


def test_set_can_create_a_group(load):
    assert load(WEB, ["sidecars.db.command=ls", "sidecars.db.count=2"]).config.sidecars["db"].count == 2


@pytest.mark.parametrize(
    ("set", "sentence"),
    [
        ("a.b=3", "--set a.b: unknown key a; known are: model, environments, "),
        ("name.x=3", "--set: name has no keys of its own, so there is no name.x."),
        ("sidecars.web.count.x=3", "--set: sidecars.web.count has no keys of its own, so "),
    ],
)
def test_key_below_a_plain_value_is_refused(mistakes, set, sentence):
    (found,) = mistakes(WEB, [set])
    assert found.startswith(sentence)


@pytest.mark.parametrize("text", ["", "# only a comment\n"])
def test_an_empty_run_file_is_named(mistakes, text):
    assert mistakes(text) == ["run.yaml: the run needs the key name."]


@pytest.mark.parametrize(
    ("command", "mistake"),
    [
        ("ls {slott}", "{slott} is no placeholder; did you mean {slot}?"),
        ("ls --dir={run-dir}/x", "{run-dir} is no placeholder; did you mean {run_dir}?"),
        ("ls {slot} {unit} {run_dir} {state_dir} {python}", ""),
        ("ls {} ${slots} {{slots}} {HOME} {foo} {1}", ""),
        ("['{python}', -c, 'print(f\"{units} of {slots}\")']", ""),
    ],
)
def test_misspelt_placeholder_is_refused_and_other_braces_are_kept(load, mistakes, command, mistake):
    text = f"name: demo\nsidecars:\n  web:\n    command: {command if command[0] == '[' else json.dumps(command)}\n"
    if mistake:
        (found,) = mistakes(text)
        assert mistake in found
        assert found.startswith("run.yaml:3: sidecars.web")
    else:
        load(text)


def test_placeholders_are_those_that_the_host_agent_replaces(tmp_path):
    home = Home("u", "h", tmp_path, tmp_path)
    for name in PLACEHOLDERS:
        assert filled(f"{{{name}}}", home, "web-0") != f"{{{name}}}"


def test_advice_names_missing_programs_and_odd_braces(load):
    loaded = load(
        "name: demo\nsidecars:\n"
        "  a: {command: nosuchprogram}\n  b: {command: '{python} -V'}\n  c: {command: ls}\n"
        "  d: {command: ./start.sh}\n  e: {command: nosuchprogram, hosts: far}\n  f: {command: 'ls {foo}'}\n"
    )
    assert show.advice(loaded) == [
        "sidecars.f.command: {foo} is no placeholder and stays as it is.",
        "run.yaml:3: sidecars.a.command: there is no program nosuchprogram on this host.",
        "run.yaml:6: sidecars.d.command: there is no program ./start.sh on this host.",
    ]
