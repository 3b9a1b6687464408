"""Contains the programs and run files of the demos, which come with the package."""
