"""Mechanisms of copies and products, TMA, tensor memory and tensor cores, and why another one is impossible. No layout
is assigned here."""
