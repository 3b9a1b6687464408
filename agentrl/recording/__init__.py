"""Recordings: the feed of a run on disk, so that the console can play back any past minute.

A recording is a series of frames of one minute. Each frame is a snapshot followed by the changes after it, so a reader
needs no other frame. The writer hands data to the disk every second; a killed writer loses one second. The start of an
incident, an alert or an operation is marked outside the compressed part, so a search does not decompress frames.
Recordings contain rows only: no records, prompts or results. Steps are documents of the store; their metrics are in
the trainer's row, which changes with every step.
"""
