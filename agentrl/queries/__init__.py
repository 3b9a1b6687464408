"""The commands on data that the steward serves: lists, details, exports and changes."""
