"""Programs to compare vpps with."""
