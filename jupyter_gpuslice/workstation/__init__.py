"""The GPUs of a machine that several of its accounts share without a hub."""
