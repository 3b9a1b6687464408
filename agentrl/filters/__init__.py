"""The query language of lists: `status=failed and duration_s>30 and error~"timeout"`.

Pure: a text becomes a tree, and the tree is either evaluated on plain dictionaries or translated for MongoDB. Both
answer alike; no document is looked at by a query that was not understood whole.
"""
