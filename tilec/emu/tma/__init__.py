"""Copies that run beside the threads: cp.async, bulk copies, tensor maps, and writes into another block's memory.
Loads and stores of a thread are in `memory`.
"""
