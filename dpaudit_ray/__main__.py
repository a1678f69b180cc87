"""`python -m dpaudit_ray` is `dpaudit`."""

import sys

from .cli.main import main

if __name__ == "__main__":  # and not in a process that this one starts
    # Anybody's files may lie in the working directory; verbs that run code add it at the end.
    if not sys.flags.safe_path:
        sys.path.pop(0)
    main()
