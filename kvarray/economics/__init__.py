"""What KV costs: its bytes, its time, and when to keep it."""
