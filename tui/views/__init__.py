"""One view per file: what fills the screen between header and footer."""
