"""Both engines, on processors."""

from tests.engines.contract.fixtures import *  # noqa: F403 # fixtures are found by their names
