"""The tokens of a record: the tree of what the engine consumed and produced, and the pairs that train.

Pure: no tokenizer, no tensors, no input or output. Text is derived elsewhere and never turned back into tokens.
"""
