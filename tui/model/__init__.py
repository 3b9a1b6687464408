"""What the console knows and how it words it. PURE: no textual, no clock, no sockets."""
