"""Contains the handlers of messages: one for clients, one for host agents, one for units."""
