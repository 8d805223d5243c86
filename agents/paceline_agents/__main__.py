"""`python -m paceline_agents` is `paceline-agent`."""

from paceline_agents.cli import main

if __name__ == "__main__":
    main()
