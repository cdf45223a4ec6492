"""Arms in our words against the builds that were really probed (tests/data/probes) and excerpts of their --help."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from findings.config import Backend, Driver, Speculation, SpeculationType
from findings.engine.arms import (
    TYPE_NAMES,
    Launch,
    ServerSettings,
    Unsupported,
    spec_types_of,
    speculation_values,
    translate,
)
from findings.engine.features import Features, features_from_detail
from findings.engine.probe import binding_features, log_details_of, parse_devices, parse_help, server_spec_types

PROBES = Path(__file__).parents[1] / "data" / "probes"
BINDINGS = ("b8929", "b9093", "b9538", "b9713", "b11549")
SERVER = ServerSettings(model=Path("/models/target.gguf"), drafter=Path("/models/drafter.gguf"))
DRAFT = Speculation(SpeculationType.DRAFT_SIMPLE, drafter="drafter", n_max=16, n_min=0, p_min=0.75)
NGRAMS = tuple(kind for kind in SpeculationType if kind.value.startswith("ngram"))

# llama-server's --help of about b8929: one flat set of lengths, and no word for drafter models in --spec-type.
HELP_APRIL = """----- common params -----

-h,    --help, --usage                  print usage and exit
-m,    --model FNAME                    model path to load
-t,    --threads N                      number of CPU threads to use during generation (default: -1)
-tb,   --threads-batch N                number of threads to use during batch and prompt processing (default:
                                        same as --threads)
-c,    --ctx-size N                     size of the prompt context (default: 0, 0 = loaded from model)
-b,    --batch-size N                   logical maximum batch size (default: 2048)
-ub,   --ubatch-size N                  physical maximum batch size (default: 512)
-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers to store in VRAM (default: auto)
-dev,  --device <dev1,dev2,..>          comma-separated list of devices to use for offloading (none = don't
                                        offload)
-fit,  --fit [on|off]                   whether to adjust unset arguments to fit in device memory ('on' or
                                        'off', default: 'on')
-lv,   --verbosity, --log-verbosity N   Set the verbosity threshold. Values:
                                         - 0: generic output
                                         - 3: info
                                         - 4: debug
-np,   --parallel N                     number of server slots (default: -1, -1 = auto)

----- example-specific params -----

--draft, --draft-n, --draft-max N       number of tokens to draft for speculative decoding (default: 16)
                                        (env: LLAMA_ARG_DRAFT_MAX)
--draft-min, --draft-n-min N            minimum number of draft tokens to use for speculative decoding
                                        (default: 0)
--draft-p-min P                         minimum speculative decoding probability (greedy) (default: 0.75)
-cd,   --ctx-size-draft N               size of the prompt context for the draft model (default: 0, 0 = loaded
                                        from model)
-ngld, --gpu-layers-draft, --n-gpu-layers-draft N
                                        max. number of draft model layers to store in VRAM (default: auto)
-md,   --model-draft FNAME              draft model for speculative decoding (default: unused)
--spec-type [none|ngram-cache|ngram-simple|ngram-map-k|ngram-map-k4v|ngram-mod]
                                        type of speculative decoding to use when no draft model is provided
                                        (default: none)
--spec-ngram-size-n N                   ngram size N for ngram-simple/ngram-map speculative decoding (default: 12)
--spec-ngram-size-m N                   ngram size M for ngram-simple/ngram-map speculative decoding (default: 48)
--spec-ngram-min-hits N                 minimum hits for ngram-map speculative decoding (default: 1)
"""


def probed(name: str) -> Features:
    return features_from_detail(json.loads((PROBES / f"{name}.json").read_text(encoding="utf-8")))


def binding(build: str) -> Features:
    return probed(f"xllamacpp-{build}")


def april_server() -> Features:
    defaults, removed, values = parse_help(HELP_APRIL)
    return Features(
        driver=Driver.LLAMA_SERVER,
        build=8929,
        version="b8929",
        spec_types=server_spec_types(defaults, values),
        options=defaults,
        removed=removed,
        log_details=log_details_of(HELP_APRIL),
    )


def launched(speculation: Speculation, features: Features, server: ServerSettings = SERVER) -> Launch:
    result = translate(speculation, features, server)
    assert isinstance(result, Launch), result
    return result


def flag_value(launch: Launch, flag: str) -> str:
    return launch.flags[launch.flags.index(flag) + 1]


@pytest.mark.parametrize("build", BINDINGS)
def test_a_draft_arm_states_every_length_itself_whatever_the_builds_defaults_are(build: str) -> None:
    settings = launched(DRAFT, binding(build)).settings
    prefix = "speculative." if build == "b8929" else "speculative.draft."
    assert settings[prefix + "n_max"] == 16
    assert settings[prefix + "n_min"] == 0
    assert settings[prefix + "p_min"] == 0.75
    assert settings[prefix + "n_gpu_layers"] == 0
    path = "speculative.mparams_dft.path" if build == "b8929" else "speculative.draft.mparams.path"
    assert settings[path] == "/models/drafter.gguf"


@pytest.mark.parametrize("build", BINDINGS)
def test_the_type_of_a_draft_arm_is_named_as_the_build_names_it(build: str) -> None:
    settings = launched(DRAFT, binding(build)).settings
    if build in ("b8929", "b9093"):
        assert settings["speculative.type"] == {"enum": ["common_speculative_type", "COMMON_SPECULATIVE_TYPE_DRAFT"]}
    else:
        member = {"enum": ["common_speculative_type", "COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE"]}
        assert settings["speculative.types"] == [member]


@pytest.mark.parametrize("build", BINDINGS)
def test_every_attribute_of_every_arm_exists_in_the_build(build: str) -> None:
    features = binding(build)
    for kind in SpeculationType:
        if kind.value in features.spec_types:
            launch = launched(Speculation(kind, drafter="d"), features)
            assert set(launch.settings) <= set(features.options)


@pytest.mark.parametrize("build", BINDINGS)
def test_the_baseline_says_none_and_names_no_drafter(build: str) -> None:
    launch = launched(Speculation(SpeculationType.NONE), binding(build))
    assert "COMMON_SPECULATIVE_TYPE_NONE" in launch.words["type"]
    assert "/models/drafter.gguf" not in launch.settings.values()


@pytest.mark.parametrize("build", BINDINGS)
def test_an_ngram_draft_may_be_as_long_as_ngram_m_says_in_every_build(build: str) -> None:
    arm = Speculation(SpeculationType.NGRAM_SIMPLE, ngram_n=12, ngram_m=48, ngram_min_hits=1, n_max=16)
    settings = launched(arm, binding(build)).settings
    if build == "b8929":  # the server there cuts every draft to the one n_max
        assert (settings["speculative.ngram_size_m"], settings["speculative.n_max"]) == (48, 48)
    else:
        assert settings["speculative.ngram_simple.size_m"] == 48
        assert "speculative.draft.n_max" not in settings


def test_builds_before_the_mtp_drafter_refuse_it_in_their_own_words() -> None:
    for build in ("b8929", "b9093"):
        result = translate(Speculation(SpeculationType.DRAFT_MTP, drafter="d"), binding(build), SERVER)
        assert isinstance(result, Unsupported)
        assert "common_speculative_type has no member COMMON_SPECULATIVE_TYPE_DRAFT_MTP" in result.reason
        assert "COMMON_SPECULATIVE_TYPE_DRAFT" in result.reason
    assert isinstance(translate(Speculation(SpeculationType.DRAFT_MTP, drafter="d"), binding("b9538"), SERVER), Launch)


def test_an_attribute_that_is_gone_is_named() -> None:
    features = binding("b11549")
    without = replace(features, options={k: v for k, v in features.options.items() if k != "speculative.draft.p_min"})
    result = translate(DRAFT, without, SERVER)
    assert isinstance(result, Unsupported)
    assert "speculative.draft.p_min" in result.reason
    assert "11549" in result.reason


def test_the_flags_of_the_probed_server() -> None:
    launch = launched(DRAFT, probed("llama-server-b10068"))
    assert flag_value(launch, "--spec-type") == "draft-simple"
    assert flag_value(launch, "--spec-draft-n-max") == "16"
    assert flag_value(launch, "--spec-draft-p-min") == "0.75"
    assert flag_value(launch, "--spec-draft-ngl") == "0"
    assert flag_value(launch, "--device") == "none"
    assert flag_value(launch, "--fit") == "off"
    assert "--draft-max" not in launch.flags


def test_a_removed_flag_is_refused_with_what_the_build_says_about_it() -> None:
    features = probed("llama-server-b10068")
    assert "--draft-max" not in features.options
    options = {k: v for k, v in features.options.items() if k != "--spec-draft-n-max"}
    result = translate(DRAFT, replace(features, options=options), SERVER)
    assert isinstance(result, Unsupported)
    assert "the argument has been removed. use --spec-draft-n-max" in result.reason


@pytest.mark.parametrize("kind", NGRAMS)
def test_the_april_server_takes_ngrams_by_type_and_flat_lengths(kind: SpeculationType) -> None:
    launch = launched(Speculation(kind), april_server())
    assert flag_value(launch, "--spec-type") == kind.value.replace("_", "-")
    assert "--model-draft" not in launch.flags
    if kind is SpeculationType.NGRAM_SIMPLE:
        assert flag_value(launch, "--draft-max") == flag_value(launch, "--spec-ngram-size-m") == "48"


def test_the_april_server_drafts_with_the_file_alone() -> None:
    launch = launched(DRAFT, april_server())
    assert flag_value(launch, "--model-draft") == "/models/drafter.gguf"
    assert flag_value(launch, "--draft-max") == "16"
    assert flag_value(launch, "--gpu-layers-draft") == "0"
    assert "--spec-type" not in launch.flags
    result = translate(Speculation(SpeculationType.DRAFT_MTP, drafter="d"), april_server(), SERVER)
    assert isinstance(result, Unsupported)
    assert "--spec-type offers no draft-mtp" in result.reason


def test_a_server_older_than_spec_type_is_known_by_its_flags() -> None:
    defaults, _, values = parse_help("\n".join(line for line in HELP_APRIL.splitlines() if "--spec" not in line))
    assert server_spec_types(defaults, values) == {"none": "", "draft_simple": ""}


def test_help_is_read_with_every_alias_and_wrapped_defaults() -> None:
    defaults, removed, values = parse_help(HELP_APRIL)
    assert defaults["--draft"] == defaults["--draft-n"] == defaults["--draft-max"] == "16"
    assert defaults["--draft-min"] == "0"
    assert defaults["--fit"] == "on"
    assert values["--draft-max"] == "N"
    assert removed == {}
    assert log_details_of(HELP_APRIL) == 3
    assert probed("llama-server-b10068").log_details == 4


def test_layers_of_the_drafter_follow_the_target_unless_the_arm_says_otherwise() -> None:
    features = replace(probed("llama-server-b10068"), devices=({"name": "Vulkan0"}, {"name": "CUDA0"}))
    server = replace(SERVER, gpu_layers=99, backend=Backend.VULKAN)
    follows = launched(DRAFT, features, server)
    assert (flag_value(follows, "--device"), flag_value(follows, "--spec-draft-device")) == ("Vulkan0", "Vulkan0")
    assert flag_value(follows, "--spec-draft-ngl") == "99"
    on_cpu = launched(replace(DRAFT, gpu_layers_draft=0), features, server)
    assert (flag_value(on_cpu, "--spec-draft-ngl"), flag_value(on_cpu, "--spec-draft-device")) == ("0", "none")


def test_a_gpu_backend_without_a_device_is_unsupported() -> None:
    for name in ("llama-server-b10068", "xllamacpp-b11549"):
        result = translate(DRAFT, probed(name), replace(SERVER, backend=Backend.CUDA))
        assert isinstance(result, Unsupported)
        assert "cuda device" in result.reason


def test_a_users_flags_are_passed_and_checked() -> None:
    features = probed("llama-server-b10068")
    extra = ("--override-tensor-draft", "token_embd=CPU", "--flash-attn", "off")
    assert launched(DRAFT, features, replace(SERVER, extra=extra)).flags[-4:] == extra
    unknown = translate(DRAFT, features, replace(SERVER, extra=("--no-such-flag",)))
    assert isinstance(unknown, Unsupported)
    assert "--no-such-flag" in unknown.reason
    for taken in ("--host", "--port=1", "--api-key", "--model", "-m"):
        with pytest.raises(ValueError, match="set by the pipeline"):
            translate(DRAFT, features, replace(SERVER, extra=(taken,)))


def test_a_users_attributes_keep_their_types() -> None:
    extra = ("cache_type_k=GGML_TYPE_Q8_0", "n_ubatch=64", "swa_full=true")
    settings = launched(DRAFT, binding("b11549"), replace(SERVER, extra=extra)).settings
    assert settings["cache_type_k"] == {"enum": ["ggml_type", "GGML_TYPE_Q8_0"]}
    assert (settings["n_ubatch"], settings["swa_full"]) == (64, True)
    with pytest.raises(ValueError, match=r"attribute\.path=value"):
        translate(DRAFT, binding("b11549"), replace(SERVER, extra=("hostname=0.0.0.0",)))
    assert isinstance(translate(DRAFT, binding("b11549"), replace(SERVER, extra=("nonsense=1",))), Unsupported)


@pytest.mark.parametrize("name", [f"xllamacpp-{build}" for build in BINDINGS] + ["llama-server-b10068"])
def test_whatever_the_build_it_listens_on_this_machine_alone_and_never_fits_by_itself(name: str) -> None:
    launch = launched(Speculation(SpeculationType.NONE), probed(name))
    if launch.driver is Driver.XLLAMACPP:
        assert launch.settings.get("hostname", "127.0.0.1") == "127.0.0.1"
        assert launch.settings.get("hostnames", ["127.0.0.1"]) == ["127.0.0.1"]
        assert {"hostname", "hostnames"} & set(launch.settings)
        assert launch.settings["fit_params"] is False
    else:
        assert "--host" not in launch.flags  # the driver adds it, and the user cannot


def test_a_record_of_a_launch_names_files_without_their_folders() -> None:
    text = json.dumps(launched(DRAFT, binding("b11549")).described())
    assert "target.gguf" in text
    assert "/models/" not in text


def test_a_drafter_arm_without_a_file_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="needs the path of a drafter"):
        translate(DRAFT, binding("b11549"), ServerSettings(model=Path("/m.gguf")))


def test_defaults_are_those_of_the_time_of_the_study() -> None:
    assert speculation_values(Speculation(SpeculationType.DRAFT_MTP)) == {"n_max": 16, "n_min": 0, "p_min": 0.75}
    assert speculation_values(replace(DRAFT, n_max=0, p_min=0.0)) == {"n_max": 0, "n_min": 0, "p_min": 0.0}
    assert speculation_values(Speculation(SpeculationType.NONE)) == {}


def test_every_word_of_ours_has_a_name_in_every_driver_of_llama_cpp() -> None:
    for driver in (Driver.XLLAMACPP, Driver.LLAMA_SERVER):
        assert set(TYPE_NAMES[driver]) == set(SpeculationType)
    assert spec_types_of(Driver.LLAMA_SERVER, ["ngram-cache", "made-up"]) == {"ngram_cache": "ngram-cache"}


def test_a_probe_survives_its_record() -> None:
    features = binding("b9538")
    assert features_from_detail(json.loads(json.dumps(features.to_detail()))) == features


def test_the_build_number_is_the_end_of_the_packages_version() -> None:
    raw = {
        "version": "2026.10.11549",
        "build_info": {"build_number": 0, "commit": "unknown"},
        "attributes": {"n_ctx": 0, "speculative.types": [], "winogrande": False},
        "enums": {"common_speculative_type": {"COMMON_SPECULATIVE_TYPE_NONE": 0}},
        "devices": [{"name": "CPU", "memory_free": 5}],
    }
    features = binding_features(raw)
    assert (features.build, features.commit, features.log_details) == (11549, "", 4)
    assert set(features.options) == {"n_ctx", "speculative.types"}
    assert features.spec_types == {"none": "COMMON_SPECULATIVE_TYPE_NONE"}


def test_devices_are_read_with_their_memory() -> None:
    text = "Available devices:\n  Vulkan0: NVIDIA GeForce GTX 1060 (6144 MiB, 5800 MiB free)\n  CUDA1: Tesla P4\n"
    assert parse_devices(text) == (
        {"name": "Vulkan0", "description": "NVIDIA GeForce GTX 1060", "memory_total": 6144 * 2**20},
        {"name": "CUDA1", "description": "Tesla P4", "memory_total": 0},
    )
    assert parse_devices("Available devices:\n") == ()
