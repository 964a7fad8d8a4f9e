"""Kernel text to a syntax tree, and back. No name is looked up here."""
