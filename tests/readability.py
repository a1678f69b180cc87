"""Measures how dense code is and how plain its English is: see CONTRIBUTING, "How code reads".

The measures point at lines that a reader stumbles over. They do not replace a reader.
"""

import ast
import dataclasses
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

DENSE_LINE = 20  # tokens; a line with more is split at a named value
LONG_SENTENCE = 35  # words
MESSAGE_WORDS = 3  # a string of as many words is read by people

LAYOUT = {
    *(tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.COMMENT, tokenize.ENDMARKER),
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\S+", text))


# A docstring begins with a verb or a noun, so never with one of these.
HEADLESS = _words("what where which whose how who when of by those that beside else as whether")
POINTERS = _words(
    "it its they them this these one ones some any none nothing nobody everything in at on for "
    "from to with without after before so such if unless until while because not only also"
)
# Names that say what happened to a value, not what it is.
VAGUE_NAMES = _words(
    "said told asked seen looked held kept taken given left moved whole there then found known "
    "learnt apart alike together own one each some rest place places others judged spent shown "
    "lost drawn woven passed likely sharp tried wanted"
)
# Programs do not perceive: they print, check, record and compare.
IDIOMS = re.compile(
    r"\b(?:told|tells?|said|says?|seen|look(?:s|ed)? (?:at|into)|asked|h[eo]lds? against"
    r"|hangs? (?:on|together)|goes on|go on|whoever|nobody|somebody|one's own|of its own|is none"
    r"|trainings|nothing but|beside)\b",
    re.IGNORECASE,
)


@dataclasses.dataclass
class Measures:
    """Counts of one tree of files.

    Attributes:
        tokens: tokens of code by file and line; layout, comments and docstrings are left out.
        words: words of docstrings, messages and pages.
        sentences: sentences of pages.
        findings: kind, place and text of each line to reconsider.
    """

    tokens: dict[Path, Counter[int]] = dataclasses.field(default_factory=dict)
    words: int = 0
    sentences: int = 0
    findings: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)

    def count(self, kind: str) -> int:
        """Returns the number of findings of one kind."""
        return sum(kind == found_kind for found_kind, _, _ in self.findings)

    def density(self, file: Path | None = None) -> float:
        """Returns the tokens per line of code, of one file or of all."""
        lines = self._lines(file)
        return sum(lines) / max(len(lines), 1)

    def dense_percent(self) -> float:
        """Returns the share of code lines with more than DENSE_LINE tokens, in percent."""
        lines = self._lines(None)
        dense = sum(tokens > DENSE_LINE for tokens in lines)
        return 100 * dense / max(len(lines), 1)

    def idioms_per_1000_words(self) -> float:
        """Returns the idioms in a thousand words."""
        return 1000 * self.count("idiom") / max(self.words, 1)

    def long_sentence_percent(self) -> float:
        """Returns the share of sentences with more than LONG_SENTENCE words, in percent."""
        return 100 * self.count("sentence") / max(self.sentences, 1)

    def _lines(self, file: Path | None) -> list[int]:
        files = [file] if file is not None else list(self.tokens)
        return [tokens for path in files for tokens in self.tokens[path].values()]

    def _add(self, kind: str, place: str, text: str) -> None:
        self.findings.append((kind, place, " ".join(text.split())[:90]))

    def _read_words(self, place: str, text: str) -> None:
        self.words += len(text.split())
        for match in IDIOMS.finditer(text):
            self._add("idiom", place, text[max(0, match.start() - 30) :])


def of_code(files: list[Path]) -> Measures:
    """Measures Python files."""
    measures = Measures()
    for file in files:
        source = file.read_text(encoding="utf-8")
        measures.tokens[file] = tokens_by_line(source)
        docstrings = set()
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
                docstrings.add(node.body[0].value)
                _read_docstring(measures, f"{file}:{node.body[0].lineno}", node)
        for node in ast.walk(tree):
            if node not in docstrings:
                _read_node(measures, f"{file}:{getattr(node, 'lineno', 0)}", node)
    return measures


def of_pages(files: list[Path]) -> Measures:
    """Measures the prose of Markdown files: no code, tables, headings or pictures."""
    measures = Measures()
    for file in files:
        for prose in _prose(file.read_text(encoding="utf-8")):
            measures._read_words(str(file), prose)
            for sentence in re.split(r"(?<=[.!?])\s+", prose):
                measures.sentences += 1
                if len(sentence.split()) > LONG_SENTENCE:
                    measures._add("sentence", str(file), sentence)
    return measures


def tokens_by_line(source: str) -> Counter[int]:
    """Counts the tokens of each line of code; an f-string is one token in all Python versions."""
    docstring_lines = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            docstring = node.body[0]
            docstring_lines.update(range(docstring.lineno, docstring.end_lineno + 1))
    tokens: Counter[int] = Counter()
    open_f_strings = 0  # from Python 3.12 on, the parts of an f-string are tokens of their own
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "FSTRING_END":
            open_f_strings -= 1
            continue
        line = token.start[0]
        is_code = token.type not in LAYOUT and line not in docstring_lines
        if is_code and not open_f_strings:
            tokens[line] += 1
        if kind == "FSTRING_START":
            open_f_strings += 1
    return tokens


def _read_docstring(measures: Measures, place: str, node: ast.AST) -> None:
    text = ast.get_docstring(node)
    measures._read_words(place, text)
    first = re.split(r"\W", text.strip().lower())[0]
    decorators = " ".join(map(ast.unparse, getattr(node, "decorator_list", ())))
    asks_a_property = first == "whether" and "property" in decorators
    if first in HEADLESS and not asks_a_property:
        measures._add("headless", place, text)
    elif first in POINTERS:
        measures._add("pointer", place, text)


def _read_node(measures: Measures, place: str, node: ast.AST) -> None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE_NAMES:
        measures._add("name", place, node.id)
    elif isinstance(node, ast.arg) and node.arg in VAGUE_NAMES:
        measures._add("name", place, node.arg)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if len(node.value.split()) >= MESSAGE_WORDS:
            measures._read_words(place, node.value)
    elif isinstance(node, ast.BinOp) and _repeats_by_bool(node):
        measures._add("str*bool", place, ast.unparse(node))
    elif isinstance(node, COMPREHENSIONS):
        inner = [child for child in ast.walk(node) if isinstance(child, COMPREHENSIONS)]
        if len(inner) > 1 or len(node.generators) > 1:
            measures._add("nested", place, ast.unparse(node))
    elif isinstance(node, ast.BoolOp) and _assigns(node):
        measures._add("walrus", place, ast.unparse(node))


def _assigns(node: ast.BoolOp) -> bool:
    return any(isinstance(child, ast.NamedExpr) for child in ast.walk(node))


def _repeats_by_bool(node: ast.BinOp) -> bool:
    """Returns whether a text or list is multiplied by a condition, in place of an `if`."""
    factor = ast.unparse(node.right)
    is_condition = isinstance(node.right, ast.Compare | ast.BoolOp)
    is_condition |= factor.startswith(("not ", "bool("))
    return is_condition and ast.unparse(node.left).startswith(("'", '"', "f'", 'f"', "["))


def _prose(page: str) -> Iterator[str]:
    without_code = re.sub(r"^(```|~~~).*?^\1", "", page, flags=re.MULTILINE | re.DOTALL)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#|]|\d+\.) ?)", without_code):
        if not block.lstrip().startswith(("|", "#", "<", "![")):
            yield re.sub(r"\]\([^)]*\)|`[^`]*`", " x ", block)
