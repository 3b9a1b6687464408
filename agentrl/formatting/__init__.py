"""Text for people, in the command line and the console: amounts, rows in words, and text that is safe to print."""
