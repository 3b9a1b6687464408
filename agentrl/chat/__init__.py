"""Converts between text and token ids: tokenizers, templates, tool-call parsers.

    template            messages to ids, one segment at a time
    own_template        how the model's own chat template writes them; jinja_rendering runs it
    markups             ChatML and a compact form, for models without a template
    prefix_check        where a template rewrites what an episode has sampled
    tool_call_parsers   tool calls in the text of an assistant; family_calls has the formats of families

Invariants:
- Text that came from outside (a user, a tool, a model) never becomes a control token.
"""
