"""The command line: one file per group of verbs, thin, with every heavy import inside a command's body."""
