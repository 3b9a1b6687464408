"""What the coordinator keeps on disk: the journal, keys, locks and the files that say where it is."""
