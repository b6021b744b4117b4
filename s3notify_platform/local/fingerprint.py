"""Code versions for code that declares no version: a fingerprint of the source text. The code is neither imported nor
run.

The fingerprint of a function covers the top-level statement that defines it, and all statements of its project that
this statement uses, directly or indirectly. Each of these statements defines or changes a function, a class or a
constant, in the same module or in an imported module. Comments, docstrings, formatting and Dagster annotations
(`@s3_slot_asset`) do not affect the fingerprint. A project is the function's own package, and other modules that are
not installed. The fingerprint contains the names that are imported from an installed package, but not the package's
version.

Guarantees
    - Equal source text has an equal fingerprint: in every process, in every folder, with every version of Python, after
      any imports.
    - The computation never fails, and parses only the modules that the code names.

The fingerprint does not cover arguments from the environment, files that the code reads, and code that is looked up by
a name made at run time. A declared `code_version` replaces the fingerprint.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from pkgutil import get_importer
from typing import Final

from s3notify_platform.kernel.limits import MAX_CODE_CHARS, MAX_CODE_STATEMENTS
from s3notify_platform.table.code_versions import NO_TRANSFORM

DIGITS: Final = 12

OURS: Final = __name__.partition(".")[0]
SLOT_ASSET: Final = "s3_slot_asset"
_INSTALLED: Final = {"site-packages", "dist-packages"}
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_NO_CODE: Final = {"ctx", "type_comment", "kind"}
"""Fields of the syntax tree that do not affect the code's behaviour."""

Target = tuple[str, tuple[str, ...]]
"""A module, and a path of names in this module."""


def fingerprint(path: str | None) -> str:
    """The fingerprint of the function with this import path. Without a path: `NO_TRANSFORM`. If the function's code
    cannot be read: "".
    """
    if not path:
        return NO_TRANSFORM
    module, _, name = path.rpartition(".")
    try:
        return _Walk(root=module).fingerprint(name)
    except Exception:  # noqa: BLE001 - finders and sources of any project: unreadable code has no fingerprint
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredAsset:
    """The name and the declared version of a slot asset. None: the source text does not show the value."""

    name: str | None
    code_version: str | None


def declared_asset(path: str) -> DeclaredAsset:
    """The arguments of `@s3_slot_asset` in the source text; `name` defaults to the function's name. Never fails."""
    module, _, name = path.rpartition(".")
    try:
        found = _Walk(root=module).statements_of(name)
    except Exception:  # noqa: BLE001 - as above
        found = []
    for statement in found:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and _is_slot_asset(node.func):
                given = {each.arg: each.value for each in node.keywords}
                own = statement.name if isinstance(statement, ast.FunctionDef) else None
                return DeclaredAsset(
                    name=_text(given["name"]) if "name" in given else own,
                    code_version=_text(given["code_version"]) if "code_version" in given else "",
                )
    return DeclaredAsset(name=None, code_version=None)


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@dataclass(slots=True, kw_only=True)
class _Walk:
    """Collects the statements that a function of module `root` uses, in the order in which the code refers to them."""

    root: str
    _found: "list[tuple[_Module, ast.stmt]]" = field(default_factory=list)
    _outside: set[str] = field(default_factory=set)
    _followed: set[tuple[Target, bool]] = field(default_factory=set)
    _taken: set[ast.stmt] = field(default_factory=set)
    _modules: "dict[str, _Module | None]" = field(default_factory=dict)
    _specs: dict[str, ModuleSpec | None] = field(default_factory=dict)

    def fingerprint(self, name: str) -> str:
        """See the module's `fingerprint`."""
        self._follow((self.root, (name,)))
        if not self._found:
            return ""
        tokens: list[str] = []
        for module, statement in self._found:  # the list grows during the loop
            tokens.extend(_tokens(statement))
            self._follow_names(module, statement)
        tokens.extend(sorted(self._outside))
        digest = sha256("\0".join(tokens).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:DIGITS]

    def statements_of(self, name: str) -> list[ast.stmt]:
        """The statements that define a name of the root module."""
        self._follow((self.root, (name,)))
        return [statement for _, statement in self._found]

    def _follow_names(self, module: "_Module", statement: ast.stmt) -> None:
        local = module.imports_in(statement)
        for name, more in _names(statement):
            for where, names in local.get(name, ()):
                self._follow((where, (*names, *more)))
            if name not in local:
                self._follow((module.name, (name, *more)), bare=True)

    def _follow(self, target: Target, *, bare: bool = False) -> None:
        """Notes the statements that define `target`. `bare`: the name has no module in front, and may be a builtin."""
        if (target, bare) in self._followed:
            return
        self._followed.add((target, bare))
        name, names = target
        if not self._is_project(name):
            self._outside.add(".".join((name, *names)))
        elif (module := self._module(name)) is not None:
            if names:
                self._follow_in(module, names[0], names[1:], bare=bare)
            else:
                self._take(module, module.statements)

    def _follow_in(self, module: "_Module", first: str, rest: tuple[str, ...], *, bare: bool) -> None:
        found, imported = module.defined.get(first, ()), module.imports.get(first, ())
        self._take(module, found)
        for where, names in imported:
            self._follow((where, (*names, *rest)))
        if found or imported:
            return
        if not bare and self._spec(inner := f"{module.name}.{first}") is not None:
            self._follow((inner, rest))
            return
        for star in module.stars:
            if self._is_project(star):
                self._follow((star, (first, *rest)), bare=True)
            else:
                self._outside.add(f"{star}.*")

    def _take(self, module: "_Module", statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if statement not in self._taken and len(self._found) < MAX_CODE_STATEMENTS:
                self._taken.add(statement)
                self._found.append((module, statement))

    def _is_project(self, name: str) -> bool:
        top, own = name.partition(".")[0], self.root.partition(".")[0]
        if OURS in (top, own):  # a new release of this package must not change fingerprints
            return name == self.root
        if top == own:
            return True
        if top in sys.stdlib_module_names or (spec := self._spec(top)) is None:
            return False
        places = [spec.origin or "", *(spec.submodule_search_locations or ())]
        return not any(_INSTALLED.intersection(Path(place).parts) for place in places)

    def _spec(self, name: str) -> ModuleSpec | None:
        if name not in self._specs:
            above, _, _ = name.rpartition(".")
            try:
                if not above:
                    found = find_spec(name)
                elif (spec := self._spec(above)) is None or spec.submodule_search_locations is None:
                    found = None
                else:
                    found = _inner_spec(name, [*spec.submodule_search_locations])
            except (ImportError, ValueError):
                found = None
            self._specs[name] = found
        return self._specs[name]

    def _module(self, name: str) -> "_Module | None":
        if name not in self._modules:
            spec = self._spec(name)
            self._modules[name] = _module_of(spec) if spec is not None else None
        return self._modules[name]


def _inner_spec(name: str, places: Sequence[str]) -> ModuleSpec | None:
    """The module of this name in a package. `find_spec` is not used, because it would import the package."""
    parts = []
    for place in places:
        finder = get_importer(place)
        found = finder.find_spec(name) if finder is not None else None
        if found is not None and found.loader is not None:
            return found
        parts += (found.submodule_search_locations or []) if found is not None else []
    if not parts:
        return None
    folder = ModuleSpec(name, None, is_package=True)
    folder.submodule_search_locations = parts
    return folder


def _module_of(spec: ModuleSpec) -> "_Module | None":
    is_package = spec.submodule_search_locations is not None
    get_source = getattr(spec.loader, "get_source", None)
    try:
        source = get_source(spec.name) if get_source is not None else None
        if source is None and is_package:  # the package has no `__init__.py`
            source = ""
        if source is None or len(source) > MAX_CODE_CHARS:
            return None
        body = ast.parse(source).body
    except (ImportError, SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return None
    package = spec.name if is_package else spec.name.rpartition(".")[0]
    return _Module(
        name=spec.name, package=package, statements=[each for each in body if not _says_only(each)]
    )


@dataclass(kw_only=True)
class _Module:
    """The top level of a module. `package`: the package from which the module's relative imports start."""

    name: str
    package: str
    statements: list[ast.stmt]

    @cached_property
    def defined(self) -> dict[str, list[ast.stmt]]:
        """The statements that define, or change, each name."""
        found: dict[str, list[ast.stmt]] = {}
        for statement in self.statements:
            for name in dict.fromkeys(_defines(statement)):
                found.setdefault(name, []).append(statement)
        return found

    @cached_property
    def imports(self) -> dict[str, list[Target]]:
        """The imports of the module's top level, by name."""
        found: dict[str, list[Target]] = {}
        for statement in self.statements:
            if not isinstance(statement, _SCOPES):
                for name, targets in self.imports_in(statement).items():
                    found.setdefault(name, []).extend(targets)
        return found

    @cached_property
    def stars(self) -> list[str]:
        """The modules from which this module imports all names (`import *`)."""
        return [
            self._from(node)
            for node in _within(self.statements)
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        ]

    def imports_in(self, statement: ast.stmt) -> dict[str, list[Target]]:
        """The imports in a statement, at any depth, by name."""
        found: dict[str, list[Target]] = {}
        for node in ast.walk(statement):
            match node:
                case ast.Import():
                    for each in node.names:
                        target = each.name if each.asname else each.name.partition(".")[0]
                        found.setdefault(each.asname or target, []).append((target, ()))
                case ast.ImportFrom():
                    for each in node.names:
                        found.setdefault(each.asname or each.name, []).append(
                            (self._from(node), (each.name,))
                        )
        return found

    def _from(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        above = self.package.split(".")[: len(self.package.split(".")) + 1 - node.level]
        return ".".join([*above, *([node.module] if node.module else [])])


def _within(statements: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Statements and their parts, except the inside of functions and classes."""
    for statement in statements:
        left: list[ast.AST] = [statement]
        while left:
            node = left.pop()
            yield node
            if not isinstance(node, _SCOPES):
                left.extend(reversed([*ast.iter_child_nodes(node)]))


def _defines(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module's top level defines, or changes."""
    for node in _within([statement]):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                yield from _begins_with(node.value)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=on))):  # like X.append(...)
                yield from _begins_with(on)


def _begins_with(node: ast.expr) -> Iterator[str]:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def _names(statement: ast.stmt) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The names that code uses, in order, each with the attributes that follow it."""
    left: list[ast.AST] = [statement]
    while left:
        node, more = left.pop(), list[str]()
        inner = node
        while isinstance(inner, ast.Attribute):
            more.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name):
            yield inner.id, tuple(reversed(more))
        else:
            left.extend(reversed([*_children(inner)]))


def _children(node: ast.AST) -> Iterator[ast.AST]:
    return (child for child in ast.iter_child_nodes(node) if not _is_left_out(child))


def _tokens(statement: ast.stmt) -> Iterator[str]:
    """The code as text tokens of its syntax tree. The function does not recurse, because calls may be chained
    deeply.
    """
    left: list[object] = [statement]
    while left:
        match left.pop():
            case str(text):
                yield text
            case ast.Constant(value=value):
                yield f"{type(value).__name__} {value!r}"
            case ast.AST() as node if not _is_left_out(node):
                yield f"({type(node).__name__}"
                left.append(")")
                for name, value in reversed([*ast.iter_fields(node)]):
                    if name not in _NO_CODE and value not in (None, []):
                        left.extend((value, f"{name}:"))
            case list(values):
                left.append("]")
                left.extend(reversed(values))
                left.append("[")
            case ast.AST():
                pass
            case value:
                yield f"{type(value).__name__} {value!r}"


def _is_left_out(node: ast.AST) -> bool:
    """True for a docstring, and for the call that declares a slot asset, including its arguments, such as name and
    owners.
    """
    return _says_only(node) or (isinstance(node, ast.Call) and _is_slot_asset(node.func))


def _says_only(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_slot_asset(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name == SLOT_ASSET
    return False
