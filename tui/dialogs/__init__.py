"""Dialogs over the view that opened them."""
