"""A whole trace through one mechanism, request by request."""
