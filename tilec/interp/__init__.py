"""Runs tile IR on the CPU with the operations' numpy references: what a kernel means, whatever is made of it."""
