"""Contains the files of the coordinator: journal, keys, locks and its address."""
