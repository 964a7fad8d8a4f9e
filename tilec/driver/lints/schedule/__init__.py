"""Of a kernel whose loops are scheduled."""
