"""Contains the command line: one file per group of commands. Heavy imports are inside the functions."""
