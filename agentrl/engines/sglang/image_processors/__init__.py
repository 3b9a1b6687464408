"""Processors of images that SGLang's server loads: a package for the Python of SGLang's own environment.

It imports nothing of agentrl, and is named to SGLang by `SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE`.
"""
