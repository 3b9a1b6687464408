"""Contains the operator's console: `agentrl tui`, or `python -m tui`."""

import os

# Textual paints at the next tick of this rate, even after a key. It ticks only when there is something to paint.
os.environ.setdefault("TEXTUAL_FPS", "200")
