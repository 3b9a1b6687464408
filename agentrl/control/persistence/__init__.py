"""What the coordinator keeps on disk: the journal, keys, locks and the file with its address."""
