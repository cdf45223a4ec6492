# Configuration, names and paths that every rule shares. Values passed to rules are plain text and numbers.
import json
import sys
from pathlib import Path

SCRIPTS = Path(workflow.current_basedir).parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from findings.cache import cache_root
from findings.config import ConfigurationError, load_configuration
from findings import plan
from findings.all_builds import with_all_builds
from findings.host import resolve_label
from findings.records import sha256_text
from snakemake.exceptions import WorkflowError


def checked(function, *arguments):
    """The result, or a workflow error that shows the message alone, without a traceback."""
    try:
        return function(*arguments)
    except (ConfigurationError, ValueError) as error:
        raise WorkflowError(str(error)) from None


STUDY = checked(load_configuration, Path(), config)
HOST = checked(resolve_label, STUDY.settings.host)
CACHE = cache_root(STUDY.settings.cache)
RECORDS = f"results/records/{HOST}"
PYTHON = sys.executable
# What the command line and --configfile changed, handed on to every script as JSON. Not a parameter of rules: those
# name the entries that matter to them, so that an unrelated change does not measure everything anew.
OVERRIDES = json.dumps(config, sort_keys=True)


def modules(*names):
    """Files of findings modules, as inputs: an edit of one makes Snakemake run the rule again."""
    return [str(SCRIPTS / "findings" / f"{name}.py") for name in names]


def script(name):
    """Path of a command-line tool."""
    return str(SCRIPTS / f"{name}.py")


def digest(*things):
    """Short hash of configuration entries: as a parameter it makes Snakemake notice that an entry changed."""
    return sha256_text(repr(things))[:16]


wildcard_constraints:
    attempt=plan.wildcard(STUDY.attempts),
    engine=plan.wildcard(STUDY.engines),
    model=plan.wildcard(STUDY.models),
    converter=plan.wildcard(STUDY.converters),
    wheel=plan.wildcard(STUDY.torch_wheels),
    arm="[a-z0-9._-]+",
    environment="[a-z0-9._-]+",
