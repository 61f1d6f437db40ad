"""`python -m easyscale` is `easyscale`."""

from easyscale.cli.main import main

main(prog_name="easyscale")
