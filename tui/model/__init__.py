"""State of the console and the text made of it. PURE: no textual, no clock, no sockets."""
