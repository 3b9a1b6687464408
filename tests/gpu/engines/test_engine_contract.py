"""The tests of the contract of engines, for SGLang on a GPU."""

from tests.engines.contract.test_contract import *  # noqa: F403 # the same tests, with this directory's fixtures
