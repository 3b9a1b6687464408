"""Reads the tokenizer of the published weights, which turns stored tokens into text.

All publications of a run have the same one, so it is read once.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentrl.chat.template import Template
from agentrl.chat.tokenizer import Tokenizer
from agentrl.errors import ConfigError
from agentrl.files.frames import FilesError, WrongListError
from agentrl.files.unit_files import UnitFiles
from agentrl.store import publications
from agentrl.store.database import Database


class PublishedTokenizer:
    def __init__(self, database: Database, run_dir: Path) -> None:
        self._database = database
        self._run_dir = run_dir
        self._files = UnitFiles.of_this_unit()
        self._tokenizer: Tokenizer | None = None
        self._template: Template | None = None

    async def tokenizer(self) -> Tokenizer | None:
        """None while nothing is published. Raises ConfigError if it cannot be read."""
        if self._tokenizer is None and (directory := await self._newest()) is not None:
            self._tokenizer = await asyncio.to_thread(Tokenizer, directory)
        return self._tokenizer

    async def template(self) -> Template | None:
        """Its chat template. None if no tokenizer can be read, or if it has no known markup."""
        if self._template is None:
            try:
                if (directory := await self._newest()) is not None:
                    self._template = await asyncio.to_thread(Template.of, directory)
            except ConfigError:
                return None
        return self._template

    async def _newest(self) -> Path | None:
        """The directory of the newest publication, which a trainer on another host may have written."""
        newest = await publications.newest(self._database)
        if newest is None:
            return None
        try:
            await self._files.bring(newest.path, publications.tokenizer_files(newest))
        except (FilesError, WrongListError) as failed:
            raise ConfigError(f"The tokenizer cannot be read: {failed.message}") from failed
        return self._run_dir / newest.path
