"""The endpoints, a file a family."""
