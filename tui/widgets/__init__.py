"""One widget per file, each with the style that it needs."""
