"""``python -m uwarp.contract``: the C header and the register reference."""

import sys

from .generate import main

sys.exit(main())
