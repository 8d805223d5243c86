"""Paceline for agents: clients, the LiteLLM provider and the reference repair agent."""
