"""What one build of the engine offers, found by probing it (see probe.py); the input of the translation of arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from findings.config import Driver


@dataclass(frozen=True)
class Features:
    """One probed build.

    `options` maps what can be set to its default: attribute paths of the binding (`speculative.draft.n_max`), or flags
    of llama-server with every alias as a key (`--spec-draft-n-max`, default as text, "" where --help names none), or
    fields of transformers' GenerationConfig.
    `removed` maps flags that the build still knows only to refuse them to its own words. `spec_types` maps our words
    for speculation to the build's. `log_details` is the verbosity at which the build prints buffers and devices.
    """

    driver: Driver
    build: int
    version: str
    commit: str = ""
    system_info: str = ""
    devices: tuple[Mapping[str, Any], ...] = ()
    spec_types: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    removed: Mapping[str, str] = field(default_factory=dict)
    log_details: int = 3

    def first(self, names: Sequence[str]) -> str:
        """The first of `names` that this build has, or "" for none."""
        return next((name for name in names if name in self.options), "")

    def to_detail(self) -> dict[str, Any]:
        """The JSON of a probe record's `detail`."""
        return {
            "driver": self.driver.value,
            "build": self.build,
            "version": self.version,
            "commit": self.commit,
            "system_info": self.system_info,
            "devices": [dict(device) for device in self.devices],
            "spec_types": dict(self.spec_types),
            "options": dict(self.options),
            "removed": dict(self.removed),
            "log_details": self.log_details,
        }


def features_from_detail(detail: Mapping[str, Any]) -> Features:
    """Features from the `detail` of a probe record whose outcome is ok.

    Raises KeyError or ValueError where the detail is that of a failed probe.
    """
    return Features(
        driver=Driver(detail["driver"]),
        build=int(detail["build"]),
        version=str(detail["version"]),
        commit=str(detail.get("commit", "")),
        system_info=str(detail.get("system_info", "")),
        devices=tuple(detail.get("devices", ())),
        spec_types=dict(detail["spec_types"]),
        options=dict(detail["options"]),
        removed=dict(detail.get("removed", {})),
        log_details=int(detail.get("log_details", 3)),
    )
