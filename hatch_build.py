"""Put migrations and protos into the wheel; an editable install reads them from the checkout instead."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PacelineBuildHook(BuildHookInterface[Any]):
    """Adds `paceline/migrations` and `paceline/proto` to standard wheels only."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"]["migrations"] = "paceline/migrations"
            build_data["force_include"]["proto"] = "paceline/proto"
