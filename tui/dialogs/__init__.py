"""Contains the dialogs, which appear over the view that opened them."""
