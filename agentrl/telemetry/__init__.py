"""The declared metrics: name, unit, meaning and normal band. Pure."""
