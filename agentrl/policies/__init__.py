"""What the data plane decides, apart from who carries it out: plain functions on plain values.

Nothing here opens a socket, reads a clock or draws a random number. The store's conditional updates, the steward, the
samplers and the trainer ask these modules, so that every rule exists once and is tested with lists and a fake clock.
"""
