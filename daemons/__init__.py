"""Contains the main loops of all roles: `python -m daemons.ROLE`."""
