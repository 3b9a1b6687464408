"""Python imports this file at the start of each process whose PYTHONPATH names its directory."""

from tests.settings.recording import record_this_process

record_this_process()
