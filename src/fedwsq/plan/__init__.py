"""The frozen settings of a run: what they are, how TOML becomes them, and published methods by name."""
