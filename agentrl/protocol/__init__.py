"""Every message, row and command between processes. Pure: no sockets, no clock, no files."""
