"""Converts between text and token ids: tokenizers, templates, tool-call parsers.

A conversation is written as ChatML or in a compact form of our own, whichever the tokenizer has tokens for. The model's
own template is not used; each sampler logs where it differs from what is written.

Invariants:
- Text that came from outside (a user, a tool, a model) never becomes a control token.
"""
