"""Hosts, guests and the planes between them, built from plans and always torn down.

`setting.py` says what to build and `testbed.py` builds it; `model.py` and `plan.py` are the values
that both use. Each folder is a kind of part: hosts, guests, planes, switches, loads, vfs, chains.
"""
