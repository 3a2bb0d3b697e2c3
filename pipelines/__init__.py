"""When and where the chain runs; never how."""
