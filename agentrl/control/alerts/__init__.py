"""Contains the alerts: the table of rules, the life cycle of alerts, and the delivery of notifications."""
