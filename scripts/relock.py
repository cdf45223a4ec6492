"""Write the hash-pinned requirement locks in envs/ again (needs uv and a package index).

`python scripts/relock.py` renews every lock, `python scripts/relock.py pipeline engine-b11549` only those named.
The locks hold no index address and no path of a machine: where packages come from is the user's pip configuration.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.records import write_text
from findings.writing import command

PYTHON = "3.11"
ENVS = "envs"
COMMAND = "python scripts/relock.py"
# The CPU build of torch has another version (a local one, "+cpu") than the CUDA build that PyPI has for Linux, so it
# gets a lock of its own: pip either finds it in the configured places or fails before it downloads anything large.
TORCH_CPU = (
    "torch==2.13.0+cpu",
    ("6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",),
)
CUDA_ONLY = re.compile(r"^((?:nvidia|cuda)-[a-z0-9-]+|triton)==", re.MULTILINE)
WITH_TORCH = ("converter", "transformers")
CPU_HEAD = (
    "# fallback: {name}-cuda.txt\n"
    "# note: torch for the CPU, about 200 MB to download and 1 GB on disk (CPython 3.11, Linux x86-64)\n"
)
CUDA_HEAD = (
    "# note: torch from PyPI, on Linux the CUDA build: about 3 GB to download and 7 GB on disk. "
    "Smaller: let pip find torch 2.13.0+cpu (find-links or PyTorch's CPU index)\n"
)


class RelockError(RuntimeError):
    """uv could not resolve a lock; the message holds uv's own words."""


def compile_lock(root: Path, source: str, requirements: str | None = None, skip: Sequence[str] = ()) -> str:
    """The text of a lock for `source` (a file under `root`, or `-` with the text in `requirements`).

    Raises RelockError with uv's message.
    """
    argv = ["uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes", "--no-emit-index-url"]
    argv += ["--no-emit-find-links", "--python-version", PYTHON, "--custom-compile-command", COMMAND]
    argv += [part for name in skip for part in ("--no-emit-package", name)]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    done = subprocess.run(
        [*argv, source], cwd=root, input=requirements, capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode != 0:
        raise RelockError(f"{source}: {done.stderr.strip()}")
    return done.stdout


def engine_requirements(text: str) -> dict[str, str]:
    """Lock name -> requirement from the lines of envs/engines.in."""
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {line[0]: line[1] for line in lines}


def torch_locks(root: Path, name: str) -> dict[str, str]:
    """The two locks of an environment with torch: `name` (torch for the CPU) and `name`-cuda (torch as PyPI has it)."""
    source = f"{ENVS}/{name}.in"
    cuda = compile_lock(root, source)
    small = compile_lock(root, source, skip=[*CUDA_ONLY.findall(cuda), "torch"])
    requirement, hashes = TORCH_CPU
    block = " \\\n".join([requirement, *(f"    --hash=sha256:{digest}" for digest in hashes)])
    kept = re.sub(r"\n# The following packages were excluded.*", "", small, flags=re.DOTALL).rstrip("\n")
    return {name: f"{CPU_HEAD.format(name=name)}{kept}\n{block}\n", f"{name}-cuda": CUDA_HEAD + cuda}


def write_locks(root: Path, names: Sequence[str]) -> list[str]:
    """Write the locks in `names` (all where it is empty) below `root`/envs; the names that were written.

    Raises RelockError for an unknown name or where uv fails; locks already written stay.
    """
    engines = engine_requirements((root / ENVS / "engines.in").read_text(encoding="utf-8"))
    pairs = {name: (name, f"{name}-cuda") for name in WITH_TORCH}
    known = ["pipeline", "dev", *(lock for pair in pairs.values() for lock in pair), *engines]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise RelockError(f"no such lock: {', '.join(unknown)}; there are {', '.join(known)}")
    wanted = [name for name in known if not names or name in names]
    texts: dict[str, str] = {}
    for name, pair in pairs.items():
        if set(pair) & set(wanted):
            texts |= torch_locks(root, name)
    for name in wanted:
        if name in engines:
            text = compile_lock(root, "-", engines[name] + "\n")
        else:
            text = texts.get(name) or compile_lock(root, f"{ENVS}/{name}.in")
        write_text(root / ENVS / f"{name}.txt", text)
        print(f"[relock] {ENVS}/{name}.txt", file=sys.stderr, flush=True)
    return wanted


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Renew the locks named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="locks to renew, without .txt (default: all)")
    arguments = parser.parse_args(argv)
    try:
        write_locks(Path(__file__).resolve().parent.parent, arguments.names)
    except (RelockError, FileNotFoundError) as error:
        print(f"relock: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
