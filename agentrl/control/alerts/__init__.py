"""Alerts: rules over the state of a run, their life cycle, and the sinks that get them.

    unit_rules, host_rules, run_rules, data_rules, tool_rules, learning_rules, reward_rules   the declared rules
    rule_types, subjects                what a rule is: threshold, band or condition; what it judges
    builtin_rules                       all declared rules of a run
    alert_states, alert_causes          from pending to resolved; which alert explains another
    alert_service, delivery_queues, sinks   evaluation in the coordinator; notifications

A rule is declared once, in the file of its subject: a `Threshold` with `value` and `in_words` (the unit), an
`OutOfBand` for a metric with a normal band, or a `Condition` with a function beside it. Its name is also in
`config.alerts`.
"""
