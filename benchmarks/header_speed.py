"""Compare our GGUF header reader with the `gguf` package's on a header of 262,144 tokens: time and memory, in one run.

    python benchmarks/header_speed.py [--model FILE.gguf] [--repeats 7] [--reference-repeats 2]

Without --model it writes a file with 262,144 tokens, scores, types and 514,906 merges, the size of Gemma 4's. Each
reading is a process of its own; memory is its peak above that of a bare interpreter. Exit code 1 where a claim
fails: at least 100 times faster, at most 40 MB more than a bare interpreter, a pair at most 3 times one reading.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
TOKENS, MERGES = 262_144, 514_906
FASTER, MORE_BYTES, PAIR = 100.0, 40e6, 3.0

_MEASURE = """
import json, resource, sys, time
sys.path.insert(0, {scripts!r})
paths = sys.argv[1:]
{imports}
begun = time.perf_counter()
{work}
seconds = time.perf_counter() - begun
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps([seconds, peak]))
"""
_BARE = ("", "pass")
_OURS = (
    "from pathlib import Path\nfrom findings.gguf_header import read_header",
    "read_header(Path(paths[0]))",
)
_PAIR = (
    "from pathlib import Path\nfrom findings.precheck import Question, precheck_files\n"
    "from findings.engine_rules import knows\nknows('architectures', 'llama', 11549)",
    "precheck_files(Path(paths[0]), Path(paths[1]), Question())",
)
_REFERENCE = ("from gguf import GGUFReader", "GGUFReader(paths[0])")


def measure(task: tuple[str, str], paths: Sequence[Path], repeats: int) -> tuple[list[float], float]:
    """(seconds of each repeat, largest peak memory in bytes), each in a fresh interpreter."""
    code = _MEASURE.format(scripts=str(SCRIPTS), imports=task[0], work=task[1])
    seconds, peak = [], 0.0
    for _ in range(repeats):
        argv = [sys.executable, "-c", code, *map(str, paths)]
        output = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
        taken, used = json.loads(output)
        seconds.append(taken)
        peak = max(peak, used)
    return seconds, peak


def write_model(path: Path, last_token: str) -> None:
    """A header of Gemma 4's size without weights, in another process (this one must stay slim)."""
    code = (
        "import sys\nfrom gguf import GGUFWriter\n"
        f"w = GGUFWriter(sys.argv[1], 'gemma4'); n = {TOKENS}\n"
        "w.add_tokenizer_model('gemma4')\n"
        "w.add_token_list([f'token{i:x}' for i in range(n - 1)] + [sys.argv[2]])\n"
        "w.add_token_scores([0.0] * n); w.add_token_types([1] * n)\n"
        f"w.add_token_merges([f'a{{i:x}} b' for i in range({MERGES})])\n"
        "w.write_header_to_file(); w.write_kv_data_to_file(); w.close()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path), last_token], check=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison; 1 where a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file to read instead of one written for the purpose")
    parser.add_argument("--repeats", type=int, default=7, help="readings by ours (7)")
    parser.add_argument("--reference-repeats", type=int, default=2, help="readings by the gguf package (2)")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        pair = [Path(folder) / "one.gguf", Path(folder) / "two.gguf"]
        if arguments.model is None:
            for path, last in zip(pair, ("last", "other"), strict=True):
                write_model(path, last)
        else:
            pair = [arguments.model, arguments.model]
        return compare(pair, arguments.repeats, arguments.reference_repeats)


def compare(pair: Sequence[Path], repeats: int, reference_repeats: int) -> int:
    """Measure, print, and judge the three claims."""
    _, bare = measure(_BARE, pair, 3)
    ours, our_peak = measure(_OURS, pair, repeats)
    both, pair_peak = measure(_PAIR, pair, repeats)
    print(f"file: {pair[0].stat().st_size:,} bytes; {platform.machine()}, {os.cpu_count()} cores,", end=" ")
    print(f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")
    print(f"ours       {_shown(ours)}, {(our_peak - bare) / 1e6:.1f} MB above a bare interpreter")
    print(f"pair check {_shown(both)}, {(pair_peak - bare) / 1e6:.1f} MB above a bare interpreter", flush=True)
    reference, reference_peak = measure(_REFERENCE, pair, reference_repeats)
    print(f"gguf       {_shown(reference)}, {(reference_peak - bare) / 1e6:.1f} MB above a bare interpreter")
    claims = (
        ("times faster", statistics.median(reference) / statistics.median(ours), FASTER, True),
        ("MB more", (our_peak - bare) / 1e6, MORE_BYTES / 1e6, False),
        ("readings for a pair", statistics.median(both) / statistics.median(ours), PAIR, False),
    )
    failed = 0
    for what, value, bound, at_least in claims:
        holds = value >= bound if at_least else value <= bound
        failed += not holds
        print(
            f"{'holds' if holds else 'FAILS'}: {value:.1f} {what} ({'at least' if at_least else 'at most'} {bound:g})"
        )
    return 1 if failed else 0


def _shown(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):8.4f} s (median of {len(seconds)}, {min(seconds):.4f} to {max(seconds):.4f})"


if __name__ == "__main__":
    sys.exit(main())
