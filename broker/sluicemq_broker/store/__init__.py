"""Everything that is said to MongoDB: its statements, its errors, its connection."""
