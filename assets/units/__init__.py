"""Small example units, written with the public unit runtime: `python -m assets.units.NAME`.

They show how a main loop becomes a unit, and fail on request so that the reaction of the supervisor can be seen.
"""
