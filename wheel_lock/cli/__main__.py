"""``python -m wheel_lock.cli``: the command line where the script ``wheel-lock`` is not on the path. Nothing else."""

import sys

from wheel_lock.cli import main

if __name__ == "__main__":
    sys.exit(main())
