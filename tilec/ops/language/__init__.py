"""The values that arguments are before they are checked, their arithmetic, and the binding of arguments to parameters.
No operation is here.
"""
