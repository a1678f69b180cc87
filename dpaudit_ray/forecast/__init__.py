"""What a sweep will cost, and what it can show."""
