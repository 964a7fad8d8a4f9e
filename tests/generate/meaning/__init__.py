"""What a kernel means, by numpy: its text is run as the Python that it is, with a `T` of ours and nothing of tilec."""
