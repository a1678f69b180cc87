"""`python -m dpaudit_ray` is `dpaudit`."""

from .cli import main

main()
