"""Which program an engine is on this machine, and the sha256 of the bytes that compute."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePath, PureWindowsPath

from findings.archives import ArchiveError
from findings.cache import CacheError
from findings.config import Driver, Engine
from findings.engine.drivers import locate_binary
from findings.engine.failure import EngineFailure
from findings.environments import environment_python
from findings.records import Outcome, read_record, sha256_file, sha256_text
from findings.sources import ensure_unpacked

LIBRARIES = ("*.so", "*.so.*", "*.dll", "*.dylib")


def engine_program(engine: Engine, records: Path, cache: Path) -> Path:
    """The interpreter of the environment of the binding or of transformers, or the llama-server executable.

    `records` is results/records/<host>. A release archive is unpacked into the cache at first use. Raises
    EngineFailure(unavailable) where environment, archive or executable is missing.
    """
    python: Path | None = None
    if engine.environment:
        record = read_record(records / "environments" / f"{engine.environment}.json")
        if record.outcome is not Outcome.OK:
            raise EngineFailure(Outcome.UNAVAILABLE, f"environment {engine.environment}: {record.reason}")
        python = environment_python(record, cache)
    if engine.driver.in_python:
        return python or own_interpreter(engine)
    if engine.archive is not None:
        return released_program(engine, records, cache)
    return locate_binary(engine, python)


def own_interpreter(engine: Engine) -> Path:
    """The user's own Python for an engine, as a path or a name on PATH. Raises EngineFailure(unavailable)."""
    if engine.driver is Driver.XLLAMACPP:
        raise EngineFailure(Outcome.UNAVAILABLE, f"{engine.id}: the driver xllamacpp needs an environment")
    direct = Path(engine.binary).expanduser()
    found = str(direct) if direct.is_file() and os.access(direct, os.X_OK) else shutil.which(engine.binary)
    if not engine.binary or not found:
        said = f"{direct.name} is neither an executable file nor a name on PATH" if engine.binary else "no interpreter"
        raise EngineFailure(Outcome.UNAVAILABLE, f"{engine.id}: {said}; name a Python with torch under `binaries`")
    # Never resolved: the interpreter of a virtual environment is a link, and its folder is what makes it that.
    return Path(found).absolute()


def released_program(engine: Engine, records: Path, cache: Path) -> Path:
    """The executable inside an engine's release archive, as its download record says where that lies.

    Raises EngineFailure(unavailable) for an archive that is not here, cannot be unpacked, or holds no such executable.
    """
    record = read_record(records / "sources" / f"{engine.id}.json")
    if record.outcome is not Outcome.OK:
        raise EngineFailure(Outcome.UNAVAILABLE, f"release archive of {engine.id}: {record.reason}")
    try:
        folder = ensure_unpacked(record, cache, "")
    except (ArchiveError, CacheError) as error:
        raise EngineFailure(Outcome.UNAVAILABLE, f"release archive of {engine.id}: {error}") from error
    return executable_below(folder, engine.binary or "llama-server")


def executable_below(folder: Path, name: str) -> Path:
    """The executable `name` (a file name, or the end of a path; `.exe` may be left out) below a folder.

    Raises EngineFailure(unavailable).
    """
    wanted = PureWindowsPath(name).parts  # splits at both kinds of slashes
    endings = {wanted[-1].lower(), f"{wanted[-1].lower()}.exe"}
    found = [
        path
        for path in folder.rglob("*")
        if path.name.lower() in endings and path.is_file() and path.parts[-len(wanted) : -1] == wanted[:-1]
    ]
    usable = [path for path in found if path.suffix.lower() == ".exe" or os.access(path, os.X_OK)]
    if not usable:
        said = "is not executable" if found else "is not there"
        raise EngineFailure(Outcome.UNAVAILABLE, f"the release archive is unpacked, but {name} {said} in it")
    return min(usable, key=lambda path: (len(path.parts), str(path)))


def program_sha256(engine: Engine, program: Path) -> str:
    """sha256 of the binding's shared library, or of the executable together with the libraries beside it.

    A release's llama-server is a small starter; what computes lies in libraries of the same folder. For transformers it
    is that of the lists of files (with their sha256) that torch and transformers were installed with.
    """
    if engine.driver is Driver.TRANSFORMERS:
        return _installed_sha256(program)
    if engine.driver is Driver.XLLAMACPP:
        libraries = sorted(program.parent.parent.glob("lib/python*/site-packages/xllamacpp/*.so"))
        return sha256_file(libraries[0]) if libraries else ""
    beside = {path.resolve() for pattern in LIBRARIES for path in program.parent.glob(pattern) if path.is_file()}
    return hash_of_program(_sha256(program), program.name, [(path, _sha256(path)) for path in sorted(beside)])


def hash_of_program(own: str, name: str, beside: Sequence[tuple[PurePath, str]]) -> str:
    """One sha256 for an executable and the libraries beside it (path, sha256 each, in the order of the paths)."""
    if not beside:
        return own
    lines = [(own, name), *((digest, path.name) for path, digest in beside)]
    return sha256_text("".join(f"{digest}  {leaf}\n" for digest, leaf in lines))


def _installed_sha256(python: Path) -> str:
    """sha256 of what was installed of torch and transformers beside an interpreter; "" where no list is there."""
    root = python.parent.parent
    found = sorted(
        path
        for folder in ("lib/python*/site-packages", "Lib/site-packages")
        for package in ("torch", "transformers")
        for path in root.glob(f"{folder}/{package}-*.dist-info/RECORD")
    )
    return sha256_text("".join(f"{sha256_file(path)}  {path.parent.name}\n" for path in found)) if found else ""


def _sha256(path: Path) -> str:
    state = path.stat()
    return _remembered(path, state.st_size, state.st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _remembered(path: Path, size: int, changed: int) -> str:
    """Gigabytes of GPU libraries are hashed once a process, not once an arm."""
    del size, changed
    return sha256_file(path)
