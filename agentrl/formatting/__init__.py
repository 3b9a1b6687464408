"""What people read, for the command line and the console alike: text made safe, amounts, and rows in sentences."""
