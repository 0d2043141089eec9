"""``python -m foldline``."""

from foldline.cli.main import main

main()
