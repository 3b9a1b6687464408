"""From an intent to its operation: looked at beforehand, agreed to, sent, and told of.

Invariants: nothing is begun or sent while what is seen is stale, be it the feed's or the answer to a list, without
permission, or without the consent that its effect wants: none or reversible acts at once; disruptive asks, with the
consequence in numbers; destructive wants the run's name typed; scientific wants a note. Whatever changed something has
its reverse for a while, where one is known. The target was fixed at the key press.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agentrl.errors import AgentrlError, RefusedError
from agentrl.formatting.sentences import irrevocable
from agentrl.protocol.commands import COMMANDS, Accepted, Tune
from agentrl.protocol.effects import Consent, Effect, EffectChangedError, Tier
from tui.dialogs.form import INNER, Field, Form, Question, Values
from tui.model import pending_commands
from tui.model.actions import EVERYWHERE, Action
from tui.model.effect_text import effect_lines
from tui.model.mirror import STALE_S
from tui.model.pending_commands import PendingCommand
from tui.model.styled_text import Span, Tone
from tui.views.view import View

if TYPE_CHECKING:
    from tui.app import Console

NOT_FROM_A_PAGE = frozenset({"add_tasks"})
"""Who was given an address may not name files of a host."""


class CommandRunner:
    """The one way in which the console changes something."""

    def __init__(self, console: Console) -> None:
        self._console = console

    # ---- what is wanted of the run as a whole ----

    def do_undo(self) -> None:
        undo = self._console.notices.take_undo(self._console.clock())
        if undo is None:
            self._console.say("There is nothing to take back.")
        else:
            self._console.perform(undo)

    def do_run_pause(self) -> None:
        self._console.perform(pending_commands.pause("run"))

    def do_run_resume(self) -> None:
        self._console.perform(pending_commands.resume("run"))

    def do_run_stacks(self) -> None:
        self._console.perform(pending_commands.stacks(()))

    def do_run_test_alert(self) -> None:
        self._console.perform(pending_commands.send_test_alert())

    def do_run_down(self) -> None:
        self._console.perform(pending_commands.down())

    # ---- an intent ----

    def may_begin(self, action: Action) -> bool:
        """Whether what is seen is young enough for the key of an act; says so if it is not."""
        try:
            self._check_age(None if EVERYWHERE in action.where else self._console.view)
        except RefusedError as error:
            self._console.say(f"✖ {action.title}: {error}", Tone.BAD)
            return False
        return True

    def may_ever(self, command: str) -> bool:
        """Whether it is worth asking for what the command needs: who only looks is refused in the end."""
        console = self._console
        return not console.read_only and console.mirror.permission.allows(COMMANDS[command].permission)

    async def carry_out(self, intent: PendingCommand, seen_in: View | None = None) -> None:
        """Preview, ask if need be, send. Whatever goes wrong is said in the notice line."""
        try:
            await self._carry_out(intent, seen_in)
        except AgentrlError as error:
            self._console.report(f"✖ {intent.what}: {error}", Tone.BAD)

    async def _carry_out(self, intent: PendingCommand, seen_in: View | None) -> None:
        console = self._console
        self._check(intent, seen_in)
        client = console.connection.client
        consent = await client.preview(intent.command, intent.args)
        while (agreed := await self._agreed(intent, consent)) is not None:
            self._check(agreed, seen_in)
            asked = consent.effect.scientific or consent.tier >= Tier.DISRUPTIVE
            given = consent if asked else consent.to_tier()
            try:
                accepted: Accepted = await client.call(agreed.command, agreed.args, consent=given)
            except EffectChangedError as changed:
                intent, consent = agreed, changed.consent
                continue
            undo = None if accepted.tier is Tier.NONE else agreed.undo
            exact = accepted.tier is Tier.REVERSIBLE
            console.notices.accepted(agreed.what, accepted.operation, console.clock(), undo, exact=exact)
            console.paint_chrome()
            return
        console.say(f"{intent.what}: nothing was done.")

    def _check(self, intent: PendingCommand, seen_in: View | None = None) -> None:
        """Raises RefusedError where the console itself has to refuse."""
        console, needed = self._console, intent.spec.permission
        if console.read_only:
            raise RefusedError("this console was opened read-only.", hint="Open it without --read-only.")
        if console.settings.in_browser and intent.command in NOT_FROM_A_PAGE:
            raise RefusedError("a page shall not have files of the steward's host read.", hint="A shell may.")
        if not console.mirror.permission.allows(needed):
            raise RefusedError(f"it needs {needed}, and this key is {console.mirror.permission}.")
        self._check_age(seen_in)

    def _check_age(self, seen_in: View | None) -> None:
        """Of what the feed tells, and of the rows of the view in which something was aimed at."""
        if not self._console.fresh or (seen_in is not None and not seen_in.fresh):
            raise RefusedError(
                f"what is shown is older than {STALE_S:g} s, and nothing is aimed at what may have changed.",
                hint="It is tried again by itself; look again then.",
            )

    async def agreed(self, intent: PendingCommand, preview: Consent) -> PendingCommand | None:
        """For what somebody else carries out: the intent if it may be, or None. Raises where it is refused."""
        self._check(intent)
        found = await self._agreed(intent, preview)
        if found is not None:
            self._check(found)
        return found

    async def _agreed(self, intent: PendingCommand, preview: Consent) -> PendingCommand | None:
        """The intent as it may be sent, or None."""
        if preview.effect.scientific and isinstance(intent.args, Tune) and not intent.args.note:
            noted = await self._noted(intent, preview)
            if noted is None or preview.tier < Tier.DESTRUCTIVE:
                return noted
            intent = noted
        if preview.tier >= Tier.DESTRUCTIVE:
            return intent if await self._typed_name(intent, preview.effect) else None
        if preview.tier is Tier.DISRUPTIVE:
            question = Question(
                f"{intent.what}?",
                effect_lines(preview.effect, self._console.mirror, INNER),
                go_on="do it",
                tone=Tone.WARN,
            )
            return intent if await self._console.push_screen_wait(Form(question)) is not None else None
        return intent

    async def _noted(self, intent: PendingCommand, preview: Consent) -> PendingCommand | None:
        lines = (
            *effect_lines(preview.effect, self._console.mirror, INNER),
            (Span("It begins a new segment on all curves. Why?", Tone.WARN),),
        )
        question = Question(
            f"{intent.what}?",
            lines,
            (Field("note", hint="for those who look at the curves later"),),
            check=lambda values: "" if values[0].strip() else "A scientific knob wants a note.",
        )
        answer = await self._console.push_screen_wait(Form(question))
        if answer is None or not isinstance(intent.args, Tune):
            return None
        note = answer[0].strip()
        args = msgspec.structs.replace(intent.args, note=note)
        return PendingCommand(intent.command, args, intent.what, (*intent.cli, "--note", note), intent.undo)

    async def _typed_name(self, intent: PendingCommand, effect: Effect) -> bool:
        name = self._console.mirror.name

        def check(values: Values) -> str:
            return "" if values[0] == name else f"Type the run's name, {name}, to go on."

        question = Question(
            f"{intent.what}? {irrevocable(intent.spec.reverse)}",
            effect_lines(effect, self._console.mirror, INNER),
            (Field("run", hint=name),),
            check=check,
            tone=Tone.BAD,
        )
        return await self._console.push_screen_wait(Form(question)) is not None
