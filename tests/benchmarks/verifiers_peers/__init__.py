"""The examples of `assets/environments` for verifiers, written in the style of its documentation.

`tasksets` is for release 0.4 of verifiers, `classic` for the interface that it had until 0.1.14. They run in separate
Python environments without agentrl.
"""
