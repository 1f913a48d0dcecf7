"""What the machine gives."""
