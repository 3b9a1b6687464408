"""The alert rules of every run. Each is one declaration in the file of its subject: subjects, condition or threshold,
sentence, evidence, repair command, severity, hold time. Its name is also in `config.alerts`, because a run file can
disable it.

Invariants:
- A healthy run raises no alert.
- Every finding has evidence and an `agentrl` command that repairs the cause or shows more.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentrl.control.alerts.data_rules import DATA_RULES
from agentrl.control.alerts.host_rules import HOST_RULES
from agentrl.control.alerts.learning_rules import LEARNING_RULES
from agentrl.control.alerts.reward_rules import REWARD_RULES
from agentrl.control.alerts.rule_types import Rule
from agentrl.control.alerts.run_rules import RUN_RULES
from agentrl.control.alerts.tool_rules import TOOL_RULES
from agentrl.control.alerts.unit_rules import UNIT_RULES, memory_rule


def default_rules(disable: Iterable[str] = (), *, memory_window_s: float = 3600.0) -> list[Rule]:
    """All built-in rules except the disabled ones, in the order of `BUILT_IN_RULES` of the configuration."""
    of_units = (*UNIT_RULES, memory_rule(memory_window_s))
    rules = (*of_units, *HOST_RULES, *RUN_RULES, *DATA_RULES, *TOOL_RULES, *LEARNING_RULES, *REWARD_RULES)
    return [rule for rule in rules if rule.name not in set(disable)]
