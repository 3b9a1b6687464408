"""Contains the main loops of all roles: `python -m daemons.ROLE`."""

import gc

# What is imported stays: to look for garbage in it after every 700 objects is a sixth of a trainer's start.
gc.set_threshold(50_000, 20, 50)
