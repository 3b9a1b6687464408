"""Names of the control plane's own metrics: what each means, in which unit, and what is normal. Pure."""
