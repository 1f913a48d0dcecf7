"""A model on a machine in one configuration: launches, what they read and leave behind, how long they took."""
