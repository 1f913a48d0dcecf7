"""Reads the formats of the CoNLL tasks: one word per line with its columns, a blank line after each sentence."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vpps.data.graphset import GraphSet
from vpps.data.lines import read_lines
from vpps.data.readers.names import GraphLists, Source, classes_of, some_graphs, words_of
from vpps.data.readers.sentences import graphs_of_tagged
from vpps.errors import DataError

_ID, _FORM, _UPOS, _HEAD, _RELATION, _COLUMNS = 0, 1, 3, 6, 7, 10


def read_columns(*paths: Source, tag: int = -1, min_count: int | None = None, like: GraphSet | None = None) -> GraphSet:
    """Reads lines of space-separated columns, one per word, into chains with the columns `word` and `tag`.

    Tags may follow any scheme, such as BIO or BMES. `-DOCSTART-` lines are skipped.

    Args:
        tag: number of the tag's column; column 0 is the word. The default is the last column.
        min_count, like: see `read_tagged`.

    Raises:
        DataError: a file cannot be read or holds no sentence, or a line lacks the column or has an unknown tag.
    """
    sources, sentences = [], []
    for source, lines in _blocks(paths, None):
        sentence = []
        for place, fields in lines:
            if fields[0] == "-DOCSTART-":
                continue
            if not -len(fields) < tag < len(fields) or tag == 0 or len(fields) < 2:
                raise DataError(f"{place}: expected a word and its tag in column {tag}, found {len(fields)} columns")
            sentence.append((fields[0], fields[tag]))
        if sentence:
            sources.append(source)
            sentences.append(sentence)
    some_graphs(paths, len(sentences), "a word and its tag a line")
    return graphs_of_tagged(sentences, min_count=min_count, like=like, sources=sources)


def read_conllu(*paths: Source, min_count: int | None = None, like: GraphSet | None = None) -> GraphSet:
    """Reads dependency trees in CoNLL-U: a vertex per word, with its dependents as its children, in lists.

    Columns are `word`, `tag` (UPOS) and `relation` (DEPREL). The reader skips multiword tokens (`3-4`), empty nodes
    (`5.1`) and comments. It ignores the enhanced dependencies of DEPS because they do not form trees.

    Args:
        min_count, like: see `read_tagged`; `like` also provides the relations.

    Raises:
        DataError: a file cannot be read, holds no sentence or is malformed, or `like` lacks a tag or relation.
    """
    found, where = GraphLists("word", "tag", "relation"), []
    for source, lines in _blocks(paths, "\t"):
        words = [(place, fields) for place, fields in lines if not {"-", "."} & set(fields[_ID])]
        children: list[list[int]] = [[] for _ in words]
        for k, (place, fields) in enumerate(words):
            if len(fields) != _COLUMNS or fields[_ID] != str(k + 1):
                raise DataError(f"{place}: expected word {k + 1} of the sentence, with {_COLUMNS} columns between tabs")
            head = fields[_HEAD]
            if not (head.isascii() and head.isdigit() and len(head) < 10 and int(head) <= len(words)):
                raise DataError(f"{place}: expected the head, 0 to {len(words)}, found {head!r}")
            if int(head):
                children[int(head) - 1].append(k)
        for (place, fields), some in zip(words, children, strict=True):
            found.vertex(some, word=fields[_FORM], tag=fields[_UPOS], relation=fields[_RELATION])
            where.append(place)
        if words:
            found.end(source)
    some_graphs(paths, len(found.sizes), "sentences in CoNLL-U")
    vocabulary = words_of([found.columns["word"]], "word", min_count, like)
    tags, tag_names = classes_of(found.columns["tag"], where, "tag", like)
    relations, relation_names = classes_of(found.columns["relation"], where, "relation", like)
    return GraphSet(
        found.sizes, (found.offsets, np.array(found.children, np.int32)), kinds=("word",),
        columns={"word": [vocabulary[word] for word in found.columns["word"]], "tag": tags, "relation": relations},
        vocabularies={"word": vocabulary}, classes={"tag": tag_names, "relation": relation_names},
        sources=found.sources,
    )  # fmt: skip


def _blocks(paths: tuple[Source, ...], separator: str | None) -> Iterator[tuple[str, list[tuple[str, list[str]]]]]:
    """Yields every sentence's location, and its lines' locations and columns. Skips comments if given a separator."""
    for path in paths:
        lines: list[tuple[str, list[str]]] = []
        for number, text in read_lines(path):
            if text.strip(" \t"):
                if separator is None or not text.startswith("#"):
                    fields = text.split(separator) if separator else text.replace("\t", " ").split(" ")
                    lines.append((f"{path}:{number}", fields if separator else [x for x in fields if x]))
            elif lines:
                yield lines[0][0], lines
                lines = []
        if lines:
            yield lines[0][0], lines
