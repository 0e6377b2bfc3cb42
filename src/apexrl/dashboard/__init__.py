"""Runs in a browser: ``apexrl dashboard``, and the same page as one file, ``apexrl report``.

Everything is read from run folders, while runs go on or after; nothing in them is changed. The server needs the extra
``dashboard``, the rest NumPy and msgspec.
"""
