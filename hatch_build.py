"""Put migrations, protos and the engine lock into the wheel; an editable install reads them from the checkout."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PacelineBuildHook(BuildHookInterface[Any]):
    """Adds `paceline/{migrations,proto,requirements}` to standard wheels only."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"]["migrations"] = "paceline/migrations"
            build_data["force_include"]["proto"] = "paceline/proto"
            lock = "requirements/engine-cpu.txt"
            build_data["force_include"][lock] = f"paceline/{lock}"
