"""Recordings of the feed: the file format, the writer, and the one reader that playback uses."""
