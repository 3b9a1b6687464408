"""Contains one view per file. A view fills the screen between header and footer."""
