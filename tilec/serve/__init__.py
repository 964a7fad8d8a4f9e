"""The playground: kernels of a folder in a browser, compiled when they are saved."""
