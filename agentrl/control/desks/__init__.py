"""Whom the coordinator talks with: clients, host agents and units, each at a desk of its own."""
