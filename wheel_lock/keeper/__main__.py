"""Starts the keeper's program: what stands beside it is imported by its name in the library, and the library is not.

It is started by its path, with the number of a listening socket, and that of a pidfd where it is a process's child.
"""

from __future__ import annotations

import os
import sys
import types

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    for name, path in (("wheel_lock", os.path.dirname(here)), ("wheel_lock.keeper", here)):
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [path]
    from wheel_lock.keeper.program import main

    main(sys.argv[1:])
