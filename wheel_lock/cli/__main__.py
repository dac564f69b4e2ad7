"""``python -m wheel_lock.cli``: the command line if the script ``wheel-lock`` is not on the path."""

import sys

from wheel_lock_command import main

if __name__ == "__main__":
    sys.exit(main())
