"""The demo's shop with faults that a file selects: `stuck` (it never answers) or `slow SECONDS`; healthy without the
file.

python moody_shop.py FILE
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assets.shop_server import Shop, serve_stdio

FOR_EVER_S = 3600.0


class MoodyShop(Shop):
    def __init__(self, mood: Path) -> None:
        super().__init__()
        self._mood = mood

    async def call(self, session: str, tool: str, arguments: Mapping[str, Any], *, call: str = "") -> str:
        match self._mood.read_text().split() if self._mood.exists() else []:
            case ["stuck"]:
                await asyncio.sleep(FOR_EVER_S)
            case ["slow", seconds]:
                await asyncio.sleep(float(seconds))
        return await super().call(session, tool, arguments, call=call)


if __name__ == "__main__":
    serve_stdio(MoodyShop(Path(sys.argv[1])))
