"""llama-bench's own loop over the library of an engine: no server, no sampler, no HTTP; to check the server's figures.

usage: bench_loop.py LIBRARY MODEL SETTINGS_JSON < points

Run by the Python of an engine's environment, so only the standard library is used. LIBRARY is the shared object that
the binding's server runs from, which exports llama.cpp's C functions: the same bytes compute, only what is around them
is missing. The loop is `test_gen` of llama.cpp's tools/llama-bench/llama-bench.cpp with a depth (`-d`): read `depth`
random tokens, then decode `tokens` random tokens one by one, each followed by llama_synchronize, and take the time of
all of them. A short decode comes first and is not counted, as there.

SETTINGS_JSON: {"threads", "ctx", "batch", "ubatch": int}. When it is ready it prints what the context says of itself,
{"n_ctx", "n_batch", "n_ubatch", "n_threads"}; then, for each line {"depth", "tokens"} on its standard input, a line
{"depth", "tokens", "ms"}. Between two lines it sleeps, so that it can be alternated with a server. The library's own
messages go to standard error.
"""

import ctypes
import json
import random
import sys
import time
from typing import Any

# The parameter structures differ between builds behind their first members. They are passed as blocks of bytes that
# are larger than any of them: filled by the build's own defaults, and copied whole, of which the build reads its part.
BYTES = 1024
# What the first members of llama_context_params are by default in every build so far: n_ctx, n_batch, n_ubatch.
DEFAULTS = (512, 2048, 512)
SEED = 1


class _Block(ctypes.Structure):
    """A structure of the library whose members are not looked at by name."""

    _fields_ = [("words", ctypes.c_uint32 * (BYTES // 4))]


def _functions(path: str) -> Any:
    """The library with the types of the functions that are called."""
    library = ctypes.CDLL(path)
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    types: dict[str, tuple[Any, list[Any]]] = {
        "llama_backend_init": (None, []),
        "llama_model_default_params": (_Block, []),
        "llama_context_default_params": (_Block, []),
        "llama_model_load_from_file": (pointer, [ctypes.c_char_p, _Block]),
        "llama_init_from_model": (pointer, [pointer, _Block]),
        "llama_model_get_vocab": (pointer, [pointer]),
        "llama_vocab_n_tokens": (number, [pointer]),
        "llama_set_n_threads": (None, [pointer, number, number]),
        "llama_batch_get_one": (_Block, [pointer, number]),
        "llama_decode": (number, [pointer, _Block]),
        "llama_synchronize": (None, [pointer]),
        "llama_get_memory": (pointer, [pointer]),
        "llama_memory_clear": (None, [pointer, ctypes.c_bool]),
        "llama_n_ctx": (ctypes.c_uint32, [pointer]),
        "llama_n_batch": (ctypes.c_uint32, [pointer]),
        "llama_n_ubatch": (ctypes.c_uint32, [pointer]),
        "llama_n_threads": (number, [pointer]),
    }
    for name, (result, arguments) in types.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _context(library: Any, model: int, settings: dict[str, Any]) -> int:
    """A context with the sizes asked for; RuntimeError where this build's parameters are not laid out as known."""
    parameters = library.llama_context_default_params()
    if tuple(parameters.words[:3]) != DEFAULTS:
        raise RuntimeError(f"llama_context_params begins with {list(parameters.words[:3])} in this build")
    parameters.words[0], parameters.words[1] = settings["ctx"], settings["batch"]
    parameters.words[2] = settings["ubatch"]
    context = library.llama_init_from_model(model, parameters)
    if not context:
        raise RuntimeError("no context")
    library.llama_set_n_threads(context, settings["threads"], settings["threads"])
    return int(context)


class _Decoder:
    """Decodes random tokens, as llama-bench does."""

    def __init__(self, library: Any, context: int, vocabulary: int) -> None:
        self._library, self._context, self._vocabulary = library, context, vocabulary
        self._random = random.Random(SEED)  # noqa: S311 - which tokens is of no interest

    def run(self, count: int) -> None:
        """One decode of `count` random tokens; RuntimeError where the engine refuses."""
        tokens = (ctypes.c_int32 * count)(*(self._random.randrange(self._vocabulary) for _ in range(count)))
        batch = self._library.llama_batch_get_one(ctypes.cast(tokens, ctypes.c_void_p), count)
        if self._library.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama_decode refuses")
        self._library.llama_synchronize(self._context)

    def point(self, depth: int, tokens: int) -> dict[str, float]:
        """The milliseconds of `tokens` single decodes behind `depth` tokens."""
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), False)
        self.run(depth)
        began = time.perf_counter()
        for _ in range(tokens):
            self.run(1)
        return {"depth": depth, "tokens": tokens, "ms": 1000 * (time.perf_counter() - began)}


def main(argv: list[str]) -> int:
    """Load, warm up, then measure what standard input asks for, until it ends."""
    if len(argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    settings = json.loads(argv[2])
    library = _functions(argv[0])
    library.llama_backend_init()
    model = library.llama_model_load_from_file(argv[1].encode(), library.llama_model_default_params())
    if not model:
        raise RuntimeError("no model")
    context = _context(library, model, settings)
    vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
    decoder = _Decoder(library, context, vocabulary)
    decoder.point(8, 8)
    sizes = {name: getattr(library, f"llama_{name}")(context) for name in ("n_ctx", "n_batch", "n_ubatch", "n_threads")}
    print(json.dumps(sizes), flush=True)
    for line in sys.stdin:
        point = json.loads(line)
        print(json.dumps(decoder.point(point["depth"], point["tokens"])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
