"""``python -m uwarp.cli``, the same as the command ``uwarp``."""

import sys

from . import main

sys.exit(main())
