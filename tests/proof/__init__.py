"""Checks that training does what it claims: arms of one experiment over several seeds. `make proof`."""
