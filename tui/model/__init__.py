"""Holds the state of the console and formats it as text. Pure: it uses no Textual, no clock and no sockets."""
