"""The main loop of every role: `python -m daemons.ROLE`. Each file fits on a screen."""
