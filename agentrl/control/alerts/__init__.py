"""Alerts: the rules that look, the life of what they find, and the ways in which people hear of it."""
