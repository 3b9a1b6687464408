"""Contains the main loops of all roles: `python -m daemons.ROLE`."""

import gc

# Imported objects stay, and looking for garbage in them after every 700 objects takes a sixth of a trainer's start.
gc.set_threshold(50_000, 20, 50)
