"""The fields, the properties and the registry of operations on whole tiles. The operations themselves are in `ops`."""
