"""Runs llama.cpp's HTTP server inside this process; started by drivers.py with the Python of an engine's environment.

usage: xllamacpp_host.py serve SETTINGS.json STATUS.json | xllamacpp_host.py probe

Only the standard library and xllamacpp, any build of it, so nothing of the project is imported here.
SETTINGS.json maps attribute paths of CommonParams to JSON values; {"enum": [type, member]} names a member of one of
the binding's enumerations, a list of those a list of members. STATUS.json appears (by rename) when the server listens
({"address": ...}) or when it cannot ({"error": ...}).
The API key comes in the environment variable FINDINGS_ENGINE_KEY, so that no file and no command line holds it.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any


def decoded(module: Any, value: Any) -> Any:
    """A JSON value as the binding wants it: enumeration members looked up by name."""
    if isinstance(value, dict) and set(value) == {"enum"}:
        name, member = value["enum"]
        return getattr(getattr(module, name), member)
    if isinstance(value, list):
        return [decoded(module, item) for item in value]
    return value


def assign(module: Any, params: Any, path: str, value: Any) -> None:
    """Set one attribute; an attribute that this build lacks is an AttributeError with the path in it."""
    owner = params
    *parents, last = path.split(".")
    for name in parents:
        owner = getattr(owner, name)
    if not hasattr(owner, last):
        raise AttributeError("this build has no attribute " + path)
    setattr(owner, last, decoded(module, value))


def report(path: str, content: dict[str, str]) -> None:
    """Write the status file whole."""
    temporary = Path(path + ".part")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)


def serve(settings_path: str, status_path: str) -> int:
    """Start the server and wait for SIGTERM."""
    settings = json.loads(Path(settings_path).read_text(encoding="utf-8"))
    import xllamacpp  # noqa: PLC0415 - after the settings, so that a bad file is told from a bad package

    params = xllamacpp.CommonParams()
    key = os.environ.pop("FINDINGS_ENGINE_KEY", "")
    try:
        for path, value in settings.items():
            assign(xllamacpp, params, path, value)
        if key and hasattr(params, "api_keys"):
            params.api_keys = [key]
    except (AttributeError, TypeError, ValueError) as error:
        print("error: invalid argument: " + str(error), file=sys.stderr, flush=True)
        report(status_path, {"error": str(error)})
        return 1
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    try:
        server = xllamacpp.Server(params)
    except Exception as error:
        print("error: " + type(error).__name__ + ": " + str(error), file=sys.stderr, flush=True)
        report(status_path, {"error": type(error).__name__ + ": " + str(error)})
        return 1
    report(status_path, {"address": server.listening_address})
    while not done.wait(0.5):
        pass
    # The destructor waits for the server's threads; a hanging request would hold it, so leave without it.
    sys.stderr.flush()
    os._exit(0)


def plain(value: Any) -> Any:
    """A default as a JSON value; enumeration members by name, objects as None."""
    if hasattr(type(value), "__members__"):
        return value.name
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value][:4]
    return None


def attributes(params: Any, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Every attribute path below `params` with its default."""
    found: dict[str, Any] = {}
    for name in sorted(dir(params)):
        if name.startswith("_") or name in ("cpumask",):
            continue
        try:
            value = getattr(params, name)
        except Exception:  # noqa: S112 - some attributes of some builds cannot be read; they are not offered then
            continue
        if callable(value):
            continue
        if depth < 3 and type(value).__module__.startswith("xllamacpp") and not hasattr(type(value), "__members__"):
            found.update(attributes(value, prefix + name + ".", depth + 1))
        else:
            found[prefix + name] = plain(value)
    return found


def probe() -> int:
    """Print as JSON what this build of the binding offers."""
    import xllamacpp  # noqa: PLC0415 - only the environment of an engine has it

    params = xllamacpp.CommonParams()
    devices = []
    for device in xllamacpp.get_device_info():
        devices.append({key: plain(value) for key, value in device.items() if not isinstance(value, dict)})
    enums = {}
    for name in dir(xllamacpp):
        members = getattr(getattr(xllamacpp, name), "__members__", None)
        if members and name.startswith(("common_speculative", "llama_load_mode", "llama_flash", "ggml_type")):
            enums[name] = {key: int(value) for key, value in members.items()}
    facts = {
        "version": getattr(xllamacpp, "__version__", ""),
        "build_info": {key: plain(value) for key, value in dict(xllamacpp.BUILD_INFO).items()},
        "system_info": xllamacpp.get_system_info().strip(),
        "devices": devices,
        "attributes": attributes(params),
        "enums": enums,
    }
    print(json.dumps(facts))
    return 0


def main(argv: list[str]) -> int:
    """Dispatch by the first argument."""
    if argv[:1] == ["probe"] and len(argv) == 1:
        return probe()
    if argv[:1] == ["serve"] and len(argv) == 3:
        return serve(argv[1], argv[2])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
