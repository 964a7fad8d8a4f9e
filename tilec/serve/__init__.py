"""The playground: kernels of a folder in a browser, compiled when they are saved. It calls the driver, and no pass."""
