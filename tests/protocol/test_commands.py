"""The table of commands: the client has a method for every command, with the same arguments and no others."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from agentrl.client import Client
from agentrl.client.command_methods import CommandMethods, Method
from agentrl.errors import ProtocolError
from agentrl.protocol import wire
from agentrl.protocol.commands import COMMANDS, CommandSpec, act_of
from agentrl.protocol.control_commands import Accepted
from agentrl.protocol.effects import Consent, Effect, Tier
from agentrl.protocol.messages import Permission
from tests.protocol.samples import ARGS, bare, filled

TABLE = list(COMMANDS.values())


METHODS = [spec for spec in TABLE if spec.result is not None]
EXTRA = {"request_id": "id-7", "deadline_s": 3.0, "consent": Consent(Effect(), Tier.NONE, 9.0)}


class Recorder(Client):
    """A client that records its requests and sends nothing."""

    def __init__(self) -> None:
        self.called: tuple[str, Any, dict[str, Any]] | None = None

    async def call(self, name: str, args: Any = None, **how: Any) -> Any:
        self.called = (name, args, how)


@pytest.mark.parametrize("spec", METHODS, ids=lambda spec: spec.name)
def test_client_has_a_method_with_the_same_arguments_and_result(spec: CommandSpec) -> None:
    taken = inspect.signature(getattr(Recorder(), spec.name)).parameters
    fields = {field.name: field for field in msgspec.structs.fields(spec.args)}
    own = set(EXTRA) if spec.mutates else {"deadline_s"}
    assert set(taken) == set(fields) | own
    for name, field in fields.items():
        assert (taken[name].default is inspect.Parameter.empty) == field.required
        if not field.required:
            assert taken[name].default == field.default
    made = vars(CommandMethods)[spec.name]
    if isinstance(made, Method):
        assert made.__orig_class__.__args__ == (spec.result,)  # type: ignore[attr-defined]


@pytest.mark.parametrize("spec", METHODS, ids=lambda spec: spec.name)
async def test_method_passes_every_argument_on(spec: CommandSpec) -> None:
    client, given = Recorder(), filled(spec.args)
    passed = {field.name: getattr(given, field.name) for field in msgspec.structs.fields(given)}
    if spec.name == "apply":
        passed["config"] = {key: msgspec.msgpack.decode(value) for key, value in passed["config"].items()}
    extra = EXTRA if spec.mutates else {"deadline_s": 3.0}
    await getattr(client, spec.name)(**passed, **extra)
    assert client.called is not None
    name, args, how = client.called
    assert (name, wire.encode(args)) == (spec.name, wire.encode(given))
    assert {key: value for key, value in how.items() if value is not None} == {
        ("id" if key == "request_id" else key): value for key, value in extra.items()
    }


@pytest.mark.parametrize("name", sorted(ARGS))
def test_arguments_come_back_as_they_were(name: str) -> None:
    for args in (filled(ARGS[name]), bare(ARGS[name])):
        assert wire.encode(wire.decode_as(ARGS[name], wire.encode(args))) == wire.encode(args)


@pytest.mark.parametrize("name", sorted(ARGS))
def test_unknown_argument_is_refused(name: str) -> None:
    plain = msgspec.msgpack.decode(wire.encode(filled(ARGS[name])))
    with pytest.raises(ProtocolError, match="of_tomorrow"):
        wire.decode_as(ARGS[name], msgspec.msgpack.encode({**plain, "of_tomorrow": 1}))


@pytest.mark.parametrize("spec", TABLE, ids=lambda spec: spec.name)
def test_row_of_the_table_is_complete(spec: CommandSpec) -> None:
    assert COMMANDS[spec.name] is spec
    assert spec.help.endswith(".")
    assert spec.cli
    assert spec.mutates == (spec.result is Accepted)
    assert not spec.reverse or COMMANDS[spec.reverse].mutates
    assert spec.tier(Effect()) is Tier.NONE
    if spec.mutates:
        assert spec.permission in (Permission.OPERATOR, Permission.ADMIN)
        only_looks = spec.name in ("stacks", "test_alert")
        assert spec.tier(Effect(kills=("web-0",))) is (Tier.NONE if only_looks else Tier.DISRUPTIVE)
        assert spec.tier(Effect(displaces=("an attempt ends",))) is (Tier.NONE if only_looks else Tier.DISRUPTIVE)
        assert spec.tier(Effect(loses=("everything",))) is (Tier.NONE if only_looks else Tier.DESTRUCTIVE)


@pytest.mark.parametrize("spec", TABLE, ids=lambda spec: spec.name)
def test_every_act_has_a_title_and_its_undo_is_the_reverse_of_the_table(spec: CommandSpec) -> None:
    for args in (filled(spec.args), bare(spec.args)):
        assert bool(args.title()) == spec.mutates
        if (undo := args.undo()) is not None:
            assert act_of(undo).name == spec.reverse
    assert not spec.mutates or act_of(filled(spec.args)) is spec


def test_sentence_of_an_effect_says_what_happens_to_each_unit() -> None:
    effect = Effect(starts=("new-0", "web-0", "web-1"), drains=("web-0", "old-0"), kills=("web-1",))
    assert effect.sentence() == "starts new-0; restarts web-0; kills and restarts web-1; drains and stops old-0"
    assert (effect.restarts, effect.stops) == (("web-0", "web-1"), ("old-0",))


def test_permissions_of_people_are_ordered_and_that_of_units_is_separate() -> None:
    viewer, operator, admin = Permission.VIEWER, Permission.OPERATOR, Permission.ADMIN
    allowed = {(have, need) for have in Permission for need in Permission if have.allows(need)}
    assert allowed == {
        (viewer, viewer),
        (operator, viewer),
        (operator, operator),
        (admin, viewer),
        (admin, operator),
        (admin, admin),
        (Permission.HOST, Permission.HOST),
        (Permission.UNIT, Permission.UNIT),
    }
