"""A torchvision that has every module and every name, and can do nothing.

SGLang and transformers import it with their image models. Nothing of it is needed: images get their patches from a
processor of agentrl's. The real one is built against one build of torch, and would bring another.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__version__ = "0"


class _Nothing(type):
    """A class whose attributes are further such classes, as members of enumerations are asked for."""

    def __getattr__(cls, name: str) -> _Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _made(name)


def _made(name: str) -> _Nothing:
    return _Nothing(name, (), {"__init__": _refuse})


def _refuse(self: object, *_: object, **__: object) -> None:
    raise NotImplementedError(f"{type(self).__name__} of torchvision is not installed where this server is.")


def _attribute(name: str) -> _Nothing:
    if name.startswith("__"):
        raise AttributeError(name)
    return _made(name)


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith("torchvision.") else None

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = _attribute  # type: ignore[method-assign]


__getattr__ = _attribute
__path__: list[str] = []
sys.meta_path.append(_Finder())
