"""Makes Markdown of the docstrings' Sphinx roles, and writes out unpacked keywords, for the API reference of the site.

A role becomes code, and so does a session of the interpreter. A section "Example:" becomes one that mkdocstrings shows as a
session.
"""

from __future__ import annotations

import inspect
import pydoc
import re
from typing import Any

from griffe import Extension, Function, Object, Parameter, ParameterKind, Parameters

_ROLE = re.compile(r":(?:class|meth|func|attr|mod|exc|data):`(~?)([^`]+)`")
_SESSION = re.compile(r"(?:^>>> .*\n?)(?:^(?!\s*$).*\n?)*", re.MULTILINE)
_EXAMPLE = re.compile(r"^(\s*)Example:$", re.MULTILINE)


def as_markdown(text: str) -> str:
    """Return a docstring with code instead of Sphinx's roles.

    >>> as_markdown("Raises :class:`~wheel_lock.LockLost`; see :meth:`close`.")
    'Raises `LockLost`; see `close`.'
    """
    text = _ROLE.sub(lambda found: f"`{found[2].rpartition('.')[2] if found[1] else found[2]}`", text)
    # Outside of a section, where nothing is indented, a session would be quotations within quotations.
    text = _SESSION.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
    return _EXAMPLE.sub(r"\1Examples:", text)


class Roles(Extension):
    """Changes each docstring when it has been read."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_function_instance(self, *, func: Function, **_: Any) -> None:
        """Write out the keywords of ``**terms: Unpack[...]``, with their defaults."""
        own = [parameter for parameter in func.parameters if not str(parameter.annotation).startswith("Unpack[")]
        if len(own) == len(func.parameters):
            return
        method: Any = pydoc.locate(func.path)
        known, keyword = {parameter.name for parameter in own}, ParameterKind.keyword_only
        func.parameters = Parameters(
            *own,
            *(
                Parameter(name, annotation=shown.annotation, kind=keyword, default=repr(shown.default))
                for name, shown in inspect.signature(method).parameters.items()
                if name not in known
            ),
        )
