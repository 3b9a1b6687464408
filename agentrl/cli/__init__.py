"""The command line: one file per group of commands; heavy imports are inside the functions."""
