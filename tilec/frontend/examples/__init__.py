"""Examples of the reference, which `tilec explain`, hover and the documents show: kernels by page in `.tl` files, calls
with their values in `values.txt`, and their reader. Samples and tests do not belong here."""
