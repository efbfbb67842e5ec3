"""`python -m agent` is `pointsman`."""

from agent.cli import main

main(prog_name="pointsman")
