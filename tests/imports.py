"""What importing a module of the package loads, read from the source: the graph that the architecture test walks."""

import ast
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = "restd"
LAZY = "_HOMES"
"""A package that imports its public names when they are first used lists their modules in a dictionary of this name."""


@dataclass(frozen=True)
class Sources:
    """The modules under a folder, by dotted name, as they were when first read."""

    paths: dict[str, Path]
    trees: dict[str, ast.Module] = field(default_factory=dict)
    edges: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def under(cls, root):
        paths = {}
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            paths[".".join((PACKAGE, *parts))] = path
        return cls(paths)

    def tree(self, module):
        if module not in self.trees:
            self.trees[module] = ast.parse(self.paths[module].read_text(encoding="utf-8"))
        return self.trees[module]

    def named_by(self, node):
        """Modules of ours that an import statement names; `from package import name` may name a module, too."""
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"relative import of {node.module}"
            names = [self.home_of(node.module or "", alias.name) for alias in node.names]
        return [name for name in names if name == PACKAGE or name.startswith(f"{PACKAGE}.")]

    def home_of(self, package, name):
        """Module that `from package import name` ends up loading."""
        if f"{package}.{name}" in self.paths:
            return f"{package}.{name}"
        if package in self.paths and self.paths[package].name == "__init__.py":
            for node in self.tree(package).body:
                if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == LAZY for target in node.targets):
                    return ast.literal_eval(node.value).get(name, package)
        return package

    def anywhere(self, module):
        """Modules named by any import of a module, also inside functions and for type checkers alone."""
        for node in ast.walk(self.tree(module)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from self.named_by(node)

    def at_import(self, module):
        """Modules that a module itself names while it is being imported: all but what functions import."""
        if module not in self.edges:
            self.edges[module] = tuple(dict.fromkeys(self._at_import(module)))
        return self.edges[module]

    def _at_import(self, module):
        waiting = deque(self.tree(module).body)
        while waiting:
            node = waiting.popleft()
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from self.named_by(node)
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                parts = node.orelse if _for_type_checkers(node) else ast.iter_child_nodes(node)
                waiting.extend(parts)

    def loads(self, module):
        """Every module that importing one loads, with the chain that leads there; parent packages run first."""
        chains = {}
        waiting = deque([(package, (package,)) for package in _with_parents(module)])
        while waiting:
            name, chain = waiting.popleft()
            if name in chains or name not in self.paths:
                continue
            chains[name] = chain
            for target in self.at_import(name):
                waiting.extend((package, (*chain, package)) for package in _with_parents(target))
        return chains


def _for_type_checkers(node):
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _with_parents(module):
    """A module after its parent packages: importing `a.b.c` runs `a`, then `a.b`, then `a.b.c`."""
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def room_of(module):
    """Room that a module belongs to; none for the package itself."""
    return module.split(".")[1] if "." in module else None
