"""The examples of `assets/environments` with verifiers, as its own documentation writes environments.

`tasksets` is for its release 0.4, `classic` for the interface that it had until 0.1.14. They run in environments of
their own, where agentrl is not installed.
"""
