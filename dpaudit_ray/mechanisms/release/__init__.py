"""The mechanism `release`: a function of data that promises to keep each record private."""

from .mechanism import Release as Release
