"""Little real programs, each a unit by the public unit runtime: `python -m assets.units.NAME`.

They show how a main loop becomes a unit, and misbehave on request so that supervision can be watched at work.
"""
