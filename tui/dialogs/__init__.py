"""Questions, each over the view that asked."""
