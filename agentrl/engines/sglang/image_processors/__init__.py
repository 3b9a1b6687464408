"""Processors of images that SGLang's server loads: a package for the Python of SGLang's own environment.

It imports nothing of agentrl. SGLang finds it by the variable `SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE`.
"""
