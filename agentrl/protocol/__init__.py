"""Every message, row and command that crosses a process border. Pure: no sockets, no clock, no files."""
