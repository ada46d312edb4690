#!/usr/bin/env python
"""Django's command line for Capstan."""

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from config.commandline import main

    sys.exit(main(sys.argv))
