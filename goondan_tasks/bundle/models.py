"""Checks Models with the library that asks them, if it is installed (the extra ``models``).

It takes a second to import, so only ``goondan validate``, ``dev`` and ``doctor`` check, and they import it
only for what this module does not know.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import get_args

from pydantic.alias_generators import to_camel, to_snake

from goondan_tasks.bundle.binding import Scope
from goondan_tasks.bundle.findings import Finding
from goondan_tasks.bundle.inventory import Declaration
from goondan_tasks.bundle.resources import AgentResource, ModelResource
from goondan_tasks.contract.wording import FieldPath, hint

LIBRARY = "pydantic_ai"

_PROVIDER: FieldPath = ("spec", "provider")
_OPTIONS: FieldPath = ("spec", "options")
_PARAMS: FieldPath = ("spec", "modelConfig", "params")
#: the packages of the providers in the extra ``models``
PROVIDER_PACKAGES = {
    "openai": "openai",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "anthropic": "anthropic",
}
#: the parameters of all providers
COMMON_PARAMETERS = {
    "frequency_penalty",
    "max_tokens",
    "parallel_tool_calls",
    "presence_penalty",
    "seed",
    "stop_sequences",
    "temperature",
    "timeout",
    "tool_choice",
    "top_p",
}
_EXTRA = re.compile(r"pydantic-ai-slim\[[\w-]+\]")
#: the prefix of a provider's own parameters, which is also the name of its module
_FAMILY = re.compile(r"([a-z]+)_")


def missing_package(error: ImportError) -> str:
    """Return the command that installs the package of a provider, from the library's error."""
    named = _EXTRA.search(str(error))
    return f"pip install '{named[0] if named else 'pydantic-ai-slim[…]'}'"


def model_findings(scope: Scope) -> Iterator[Finding]:
    """Yield what keeps Models from being asked here, and parameters that nothing reads."""
    models = [one for one in scope.own.of_kind("Model") if isinstance(one.resource, ModelResource)]
    agents = scope.own.of_kind("Agent")
    thinking = [one for one in agents if isinstance(one.resource, AgentResource) and one.resource.thinks]
    if not models:
        return
    if find_spec(LIBRARY) is None:
        for agent in thinking[:1]:
            message = "agents that think need a package that is not installed here"
            yield agent.warning(("spec", "modelConfig"), message, "pip install 'goondan-workers[models]'")
        return
    for model in models:
        yield from _provider_findings(model)
        yield from _parameter_findings(model, _OPTIONS)
    for agent in thinking:
        yield from _parameter_findings(agent, _PARAMS)


def _provider_findings(model: Declaration) -> Iterator[Finding]:
    provider = str(model.value(_PROVIDER))
    if provider in PROVIDER_PACKAGES and find_spec(PROVIDER_PACKAGES[provider]):
        return
    from pydantic_ai.models import OpenAIChatCompatibleProvider, known_model_names
    from pydantic_ai.providers import infer_provider_class

    try:
        infer_provider_class(provider)
    except ValueError:
        known = {name.partition(":")[0] for name in known_model_names() if ":" in name}
        known |= {*get_args(OpenAIChatCompatibleProvider.__value__)}
        suggestion = hint(provider, sorted(one for one in known if "/" not in one))
        yield model.error(_PROVIDER, f"there is no provider '{provider[:80]}'", suggestion)
    except ImportError as error:
        message = f"the provider '{provider[:80]}' needs a package that is not installed here"
        yield model.warning(_PROVIDER, message, missing_package(error))


def _parameter_findings(declaration: Declaration, path: FieldPath) -> Iterator[Finding]:
    given = declaration.value(path)
    for name in given if isinstance(given, dict) else ():
        if to_snake(name) in COMMON_PARAMETERS:
            continue
        known = _known_parameters(to_snake(name))
        if to_snake(name) not in known:
            suggestion = hint(name, sorted(map(to_camel, known)))
            yield declaration.warning((*path, name), f"nothing reads the parameter '{name[:80]}'", suggestion)


def _known_parameters(name: str) -> set[str]:
    """Return the parameters of all providers, and those of the provider that the prefix of a name tells."""
    from pydantic_ai.settings import ModelSettings

    known, family = set(ModelSettings.__annotations__), _FAMILY.match(name)
    module = f"{LIBRARY}.models.{family[1]}" if family else ""
    if family and find_spec(module):
        try:
            found = vars(import_module(module))
        except ImportError:
            # its package is not installed, so its own parameters are unknown
            return known | {name}
        for kind, value in found.items():
            known |= set(value.__annotations__) if kind.endswith("ModelSettings") else set()
    return known
