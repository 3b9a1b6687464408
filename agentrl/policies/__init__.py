"""The rules of the data plane as plain functions on plain values.

Nothing here opens a socket, reads a clock or draws a random number. The store, the steward, the samplers and the
trainer call these modules, so every rule exists once and is tested with lists and a fake clock.
"""
