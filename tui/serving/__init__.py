"""Serves the console in a browser: a gate, one console process for each page that is open, and the server between
them.
"""
