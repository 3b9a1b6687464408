"""Contains the widgets that draw lines and tables, the text field, and the themes."""
