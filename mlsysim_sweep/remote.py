"""Files at a URL, through fsspec: imported only when somebody names one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mlsysim_sweep.errors import Mistake, OutputError


def is_url(path: str | Path) -> bool:
    """Whether a path is a URL such as ``s3://bucket/out``."""
    return "://" in str(path)


def resolve(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path that it has there.

    Credentials and endpoints come from fsspec's own settings and from the environment.

    Raises
    ------
    Mistake
        If fsspec, or the package for this kind of URL, is not installed, or the kind is unknown.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise Mistake(
            "path",
            f"{url} is a URL, and fsspec is not installed",
            "pip install 'mlsysim-sweep[remote]'",
        ) from None
    try:
        with said(url):
            found: tuple[Any, str] = url_to_fs(url)
    except OutputError as error:
        raise Mistake(
            "path", str(error), "a URL that fsspec can open, such as s3://bucket/out"
        ) from None
    return found


@contextlib.contextmanager
def said(url: str) -> Iterator[None]:
    """Name the URL in whatever goes wrong inside.

    Raises
    ------
    OutputError
        For any failure: each package of fsspec's has exceptions of its own.
    """
    try:
        yield
    except (Mistake, OutputError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or "no reason given"
        raise OutputError(url, f"{type(error).__name__}: {reason}") from error


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """A file open for reading, on this machine or at a URL.

    Raises
    ------
    OutputError
        If it cannot be opened at its URL.
    """
    if not is_url(path):
        with open(path, "rb") as file:
            yield file
        return
    with said(str(path)):
        system, there = resolve(str(path))
        with system.open(there, "rb") as file:
            yield file
