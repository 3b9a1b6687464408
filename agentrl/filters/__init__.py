"""The query language of lists: `status=failed and duration_s>30 and error~"timeout"`.

Pure: the parser turns a text into a tree. The tree is evaluated on dictionaries or translated for MongoDB, with the
same result. A query that cannot be parsed completely is refused.
"""
