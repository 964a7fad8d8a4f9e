"""Executes PTX text on the CPU, strictly: what the hardware does not promise is a `Fault`. See `launch.launch`."""
