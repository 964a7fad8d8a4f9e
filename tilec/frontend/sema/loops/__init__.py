"""Loops: their headers, nests of elements, loops that differ between threads, manual schedules. Their bodies'
statements are in `statements`.
"""
