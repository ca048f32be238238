"""The service and batches on several processes and machines, through Ray: the extra ``ray``."""
