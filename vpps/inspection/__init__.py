"""What a user can look at: where weights live and why, what a launch did and when."""
