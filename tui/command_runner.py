"""Changes a run for the console, in one way: preview, consent, call, and undo.

Invariants:
- No command is sent while the feed, or the list from which the target was chosen, is stale.
- No command is sent without permission or without the consent that its effect requires: effects of the tiers none and
  reversible need no question; a disruptive one shows its consequences; a destructive one requires the person to type
  the run's name; a scientific one requires a note.
- If the effect became more dangerous while the person decided, the console asks again.
- The target was fixed at the key press.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import msgspec

from agentrl.errors import AgentrlError, RefusedError
from agentrl.formatting.previews import Need, Preview
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.control_commands import Accepted, Tune
from agentrl.protocol.effects import Consent, Effect, EffectChangedError, Tier
from tui.console_interface import Host, work
from tui.dialogs.form import INNER, Field, Form, Question, Values
from tui.model.actions import EVERYWHERE, Action
from tui.model.effect_text import effect_lines
from tui.model.mirror import STALE_S
from tui.model.pending_commands import PendingCommand
from tui.model.styled_text import Span, Tone

NOT_FROM_A_PAGE = frozenset({"add_tasks"})
"""Commands that name files of a host; a browser page must not read them."""


class Source(Protocol):
    """The view in which a target was chosen."""

    @property
    def fresh(self) -> bool: ...


class CommandRunner:
    def __init__(self, console: Host) -> None:
        self._console = console

    # ---- actions on the run as a whole ----

    def do_undo(self) -> None:
        undo = self._console.notices.take_undo(self._console.clock())
        if undo is None:
            self._console.say("There is nothing to undo.")
        else:
            self.perform(undo)

    # ---- a pending command ----

    def perform(self, pending: PendingCommand, chosen_in: Source | None = None) -> None:
        """Run it in the background; questions and results appear on the screen."""
        self._console.run_worker(work(self.run, pending, chosen_in), group="acts", name=pending.what)

    def may_begin(self, action: Action, view: Source) -> bool:
        """Whether the screen is recent enough for this action; shows a message if it is not."""
        try:
            self._check_age(None if EVERYWHERE in action.where else view)
        except RefusedError as error:
            self._console.say(f"✖ {action.title}: {error}", Tone.BAD)
            return False
        return True

    def may_ever(self, command: str) -> bool:
        """Whether this console can send the command at all. The coordinator refuses a viewer in any case."""
        console = self._console
        return not console.read_only and console.mirror.permission.allows(COMMANDS[command].permission)

    async def run(self, pending: PendingCommand, chosen_in: Source | None = None) -> None:
        """Preview, ask if needed, send. Errors are shown in the notice line."""
        try:
            await self._run(pending, chosen_in)
        except AgentrlError as error:
            self._console.report(f"✖ {pending.what}: {error}", Tone.BAD)

    async def _run(self, pending: PendingCommand, chosen_in: Source | None) -> None:
        console = self._console
        self._check(pending, chosen_in)
        client = console.connection.client
        consent = await client.preview(pending.command, pending.args)
        if pending.preview_only:
            console.say(f"{pending.what}: {_preview_of(pending, consent).dry_run}")
            return
        while (agreed := await self._ask(pending, consent)) is not None:
            self._check(agreed, chosen_in)
            confirmed = consent.effect.scientific or _preview_of(pending, consent).need is not Need.NOTHING
            given = consent if confirmed else consent.to_tier()
            try:
                accepted: Accepted = await client.call(agreed.command, agreed.args, consent=given)
            except EffectChangedError as changed:
                pending, consent = agreed, changed.consent
                continue
            undo = None if accepted.tier is Tier.NONE else agreed.undo
            exact = accepted.tier is Tier.REVERSIBLE
            console.notices.accepted(agreed.what, accepted.operation, console.clock(), undo, exact=exact)
            console.paint_frame()
            return
        console.say(f"{pending.what}: nothing was done.")

    def _check(self, pending: PendingCommand, chosen_in: Source | None = None) -> None:
        """Raises RefusedError where the console itself has to refuse."""
        console, needed = self._console, pending.spec.permission
        if console.read_only:
            raise RefusedError("this console was opened read-only.", hint="Open it without --read-only.")
        if console.settings.in_browser and pending.command in NOT_FROM_A_PAGE:
            raise RefusedError("a browser page must not read files of the steward's host.", hint="Use a shell.")
        if not console.mirror.permission.allows(needed):
            raise RefusedError(f"it needs {needed}, and this key is {console.mirror.permission}.")
        self._check_age(chosen_in)

    def _check_age(self, chosen_in: Source | None) -> None:
        if not self._console.fresh or (chosen_in is not None and not chosen_in.fresh):
            raise RefusedError(
                f"the screen is more than {STALE_S:g} s old; commands are disabled until it is fresh.",
                hint="The console keeps trying; look again then.",
            )

    async def agreed(self, pending: PendingCommand, preview: Consent) -> bool:
        """Ask for a command that another process carries out. Raises RefusedError."""
        self._check(pending)
        if await self._ask(pending, preview) is None:
            return False
        self._check(pending)
        return True

    # ---- consent ----

    async def _ask(self, pending: PendingCommand, preview: Consent) -> PendingCommand | None:
        """The command as it may be sent, or None."""
        need = _preview_of(pending, preview).need
        if preview.effect.scientific and isinstance(pending.args, Tune) and not pending.args.note:
            noted = await self._ask_note(pending, pending.args, preview.effect)
            if noted is None or need is not Need.CERTAINTY:
                return noted
            pending = noted
        if need is Need.CERTAINTY:
            return pending if await self._ask_run_name(pending, preview) else None
        if need is Need.AGREEMENT:
            lines = effect_lines(preview.effect, self._console.mirror, INNER)
            question = Question(f"{pending.what}?", lines, go_on="do it", tone=Tone.WARN)
            return pending if await self._console.push_screen_wait(Form(question)) is not None else None
        return pending

    async def _ask_note(self, pending: PendingCommand, args: Tune, effect: Effect) -> PendingCommand | None:
        lines = (
            *effect_lines(effect, self._console.mirror, INNER),
            (Span("It begins a new segment on all curves. Why?", Tone.WARN),),
        )
        question = Question(
            f"{pending.what}?",
            lines,
            (Field("note", hint="for those who look at the curves later"),),
            check=lambda values: "" if values[0].strip() else "A scientific knob wants a note.",
        )
        answer = await self._console.push_screen_wait(Form(question))
        if answer is None:
            return None
        note = answer[0].strip()
        return dataclasses.replace(pending, args=msgspec.structs.replace(args, note=note))

    async def _ask_run_name(self, pending: PendingCommand, preview: Consent) -> bool:
        name = self._console.mirror.name

        def check(values: Values) -> str:
            return "" if values[0] == name else f"Type the run's name, {name}, to go on."

        question = Question(
            f"{pending.what}? {_preview_of(pending, preview).warning}",
            effect_lines(preview.effect, self._console.mirror, INNER),
            (Field("run", hint=name),),
            check=check,
            tone=Tone.BAD,
        )
        return await self._console.push_screen_wait(Form(question)) is not None


def _preview_of(pending: PendingCommand, consent: Consent) -> Preview:
    return Preview(consent.effect, consent.tier, pending.spec.reverse)
