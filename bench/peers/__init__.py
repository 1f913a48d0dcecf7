"""The programs that vpps is compared with."""
