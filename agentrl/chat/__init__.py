"""Between text and token ids: tokenizers, templates, tool-call parsers.

Invariant: text that came from outside (a user, a tool, a model) never becomes a control token.
"""
