"""The direct path of uncontended locks; see docs/design.md.

Import from the modules.
"""
