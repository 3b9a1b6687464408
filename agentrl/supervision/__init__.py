"""The supervisor's judgement, without its hands: events and the time go in, instructions come out.

Nothing here opens a socket or a file, reads a clock or draws a random number, so every decision can be replayed.
"""
