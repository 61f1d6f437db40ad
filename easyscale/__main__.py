"""Entry point of `python -m easyscale`, the same command as `easyscale`."""

from easyscale.cli.main import main

main(prog_name="easyscale")
