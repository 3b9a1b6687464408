"""Handlers of messages: one for clients, one for host agents, one for units."""
