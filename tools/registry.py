"""Which tools there are: plain functions, declared in `agent_tools.py` of any app and fixed at the start (CAP-030)."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from django.utils.module_loading import autodiscover_modules

from prompt.types import ApprovalPolicy
from tools.errors import RegistryFrozen, ToolRegistrationError
from tools.schema import function_schema
from tools.types import Effect, ToolSpec

F = TypeVar("F", bound=Callable[..., Any])

_PERMISSION = re.compile(r"\w+\.\w+")
_DECLARATION = "__capstan_tool__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What `@tool(...)` says about a function, before its signature is read."""

    fn: Callable[..., Any]
    effect: Effect
    options: Mapping[str, Any] = field(default_factory=dict)
    local_names: Mapping[str, Any] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"{self.fn.__module__}.{self.fn.__qualname__}"


class Registry:
    """Tools by name. Reading freezes it; after that nothing is added.

    Args:
        tools: functions that `@tool(...)` has declared.

    Raises:
        ToolRegistrationError: one of them cannot be a tool.
        RegistryFrozen: a tool was added after the first read.
    """

    def __init__(self, tools: Iterable[Callable[..., Any]] = ()) -> None:
        self._declared: list[Declaration] = []
        self._specs: dict[str, ToolSpec] | None = None
        for fn in tools:
            declaration = getattr(fn, _DECLARATION, None)
            if declaration is None:
                raise ToolRegistrationError(tool=getattr(fn, "__name__", repr(fn)), reason="@tool(...) is missing")
            self.add(declaration)

    def add(self, declaration: Declaration) -> None:
        """Take a declared function in; its signature is read when the registry freezes."""
        if self._specs is not None:
            raise RegistryFrozen(
                tool=declaration.where, cure="declare it in agent_tools.py of an installed app, or pass registry="
            )
        self._declared.append(declaration)

    def freeze(self) -> None:
        """Read every signature and fix the set of tools; a second time changes nothing.

        Raises:
            ToolRegistrationError: a tool is not as it must be, or two have one name.
        """
        if self._specs is not None:
            return
        collecting = gc.isenabled()
        gc.disable()  # making a few hundred classes would set it off again and again, and there is nothing to collect
        try:
            self._specs = self._read()
        finally:
            if collecting:
                gc.enable()

    def _read(self) -> dict[str, ToolSpec]:
        places: dict[str, str] = {}
        specs: dict[str, ToolSpec] = {}
        for declaration in self._declared:
            spec = build_spec(declaration)
            if spec.name in places:
                raise ToolRegistrationError(
                    tool=spec.name,
                    reason=f"two tools have this name: {places[spec.name]} and {declaration.where}",
                    cure="rename one",
                )
            places[spec.name], specs[spec.name] = declaration.where, spec
        return dict(sorted(specs.items()))

    def layered(self, specs: Iterable[ToolSpec]) -> Registry:
        """A registry with these tools beside its own, such as one workspace's MCP tools.

        Raises:
            ToolRegistrationError: a name is taken.
        """
        merged = dict(self.by_name)
        for spec in specs:
            if spec.name in merged:
                raise ToolRegistrationError(tool=spec.name, reason="the name is taken", cure="rename one")
            merged[spec.name] = spec
        layer = Registry()
        layer._specs = dict(sorted(merged.items()))
        return layer

    @property
    def by_name(self) -> Mapping[str, ToolSpec]:
        self.freeze()
        assert self._specs is not None
        return self._specs

    @property
    def frozen(self) -> bool:
        return self._specs is not None

    def get(self, name: str) -> ToolSpec | None:
        """The tool called `name`, or None."""
        return self.by_name.get(name)

    def names(self) -> frozenset[str]:
        return frozenset(self.by_name)

    def __iter__(self) -> Iterator[ToolSpec]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def __contains__(self, name: object) -> bool:
        return name in self.by_name


_code = Registry()


def registry() -> Registry:
    """The process's code tools; complete once Django's apps are ready.

    Raises:
        ToolRegistrationError: asked before the apps are ready.
    """
    if not _code.frozen:
        raise ToolRegistrationError(reason="tools are known once Django's apps are ready", cure="call django.setup()")
    return _code


def label_of(name: str) -> str:
    """What people read in place of a tool's name; also of one that was withdrawn or never was."""
    spec = registry().get(name)
    return spec.label if spec is not None and spec.label else name.replace("_", " ")


def discover() -> None:
    """Import `agent_tools.py` of every installed app and freeze the code registry; called when apps are ready.

    Raises:
        ToolRegistrationError: a tool is not as it must be; the process must not start.
    """
    if not _code.frozen:
        autodiscover_modules("agent_tools")
        _code.freeze()


def tool(
    *,
    effect: Effect,
    permission: str | None = None,
    destructive: bool = False,
    approval: ApprovalPolicy | None = None,
    chat: bool | Literal["summary"] = False,
    timeout_s: float = 30.0,
    idempotent: bool = False,
    probe: Callable[..., Any] | None = None,
    label: str = "",
    summary: Callable[..., str] | str | None = None,
    handoff: bool = False,
    domain: bool = True,
    registry: Registry | None = None,
) -> Callable[[F], F]:
    """Declare a plain typed function a tool; the function itself stays as it is.

    Args:
        effect: `read`; `write`: rows in PostgreSQL, inside the run's transaction; `external`: the world outside.
        permission: `app_label.codename` that the requester must hold; needed unless the tool reads.
        destructive: always waits for a person.
        approval: when a person is asked; by default never, for a destructive tool at every call.
        chat: offer a reading tool in conversation mode too; `summary`: only while the snapshot is a summary.
        timeout_s: wall clock of one call, seconds.
        idempotent: may be repeated after a crash.
        probe: for `external`: asks whether a call that was cut off happened; its result, or None.
        label: what people read in place of the name.
        summary: a sentence about one call for its approver; a format string over the arguments, or a function of them.
        handoff: ends the turn when it succeeds.
        domain: for a write: False when it writes no rows that a snapshot could show; snapshots then stay as they are.
        registry: another registry than the process's, as tests use.

    Source: CAP-030.
    """
    frame = sys._getframe(1)
    local_names = {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)
    target = _code if registry is None else registry

    def declare(fn: F) -> F:
        declaration = Declaration(
            fn=fn,
            effect=effect,
            options={
                "permission": permission,
                "destructive": destructive,
                "approval": approval or ("call" if destructive else "never"),
                "chat": chat,
                "timeout_s": timeout_s,
                "idempotent": idempotent,
                "probe": probe,
                "label": label,
                "summary": summary,
                "handoff": handoff,
                "domain": domain,
            },
            local_names=local_names,
        )
        target.add(declaration)
        setattr(fn, _DECLARATION, declaration)
        return fn

    return declare


def build_spec(declaration: Declaration) -> ToolSpec:
    """Check a declaration and read its function.

    Raises:
        ToolRegistrationError: names the tool, the reason and the cure.
    """
    options, where = declaration.options, declaration.where

    def refuse(reason: str, cure: str) -> ToolRegistrationError:
        return ToolRegistrationError(tool=where, reason=reason, cure=cure)

    if declaration.effect not in ("read", "write", "external"):
        raise refuse(f"there is no effect {declaration.effect!r}", "one of read, write, external")
    permission = options["permission"]
    if declaration.effect != "read" and not permission:
        raise refuse(f"a tool that has the effect {declaration.effect} needs a permission", "permission='app.codename'")
    if permission is not None and not _PERMISSION.fullmatch(permission):
        raise refuse(f"{permission!r} is no permission", "permission='app_label.codename'")
    if options["timeout_s"] <= 0:
        raise refuse("timeout_s must be above 0", "give it in seconds")
    if options["probe"] is not None and declaration.effect != "external":
        raise refuse("only an external tool has a probe", "leave it out")
    if options["handoff"] and declaration.effect != "write":
        raise refuse("a handoff is a write", "effect='write'")
    if not options["domain"] and declaration.effect != "write":
        raise refuse("only a write says that it leaves the domain alone", "leave domain out")
    if options["destructive"] and (options["approval"] != "call" or declaration.effect == "read"):
        raise refuse("a destructive tool writes, and waits for a person at every call", "leave approval out")
    if options["approval"] not in ("never", "call", "turn", "conversation"):
        raise refuse(f"there is no approval policy {options['approval']!r}", "one of never, call, turn, conversation")
    read = function_schema(declaration.fn, local_names=declaration.local_names)
    return ToolSpec(
        name=declaration.fn.__name__,
        fn=declaration.fn,
        effect=declaration.effect,
        description=read.description,
        input_schema=read.input_schema,
        signature=read.signature,
        **{**options, "label": options["label"] or declaration.fn.__name__.replace("_", " ").capitalize()},
    )
