"""How what the user writes is taken down: cells as traces, calls and maps as flat arrays."""
