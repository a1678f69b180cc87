"""What a compressed file decodes to, known before it is decoded."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpaudit_ray.storage import arrays, decoding, scores
from dpaudit_ray.storage.strangers import StrangeFileError
from tests.storage.test_storage import pack

WRITERS = [
    {"compression": "zstd", "write_page_checksum": True},
    {"compression": "none", "use_dictionary": False},
    {"compression": "snappy", "data_page_version": "2.0", "data_page_size": 500},
    {"compression": "gzip", "write_statistics": False, "row_group_size": 100},
]


@pytest.mark.parametrize("options", WRITERS)
def test_pages_state_the_bytes_and_the_values_that_arrow_decodes(options):
    """Of all pages of a column: Arrow counts their headers as well."""
    columns = {
        "number": np.arange(1000) % 7,
        "text": [f"{number % 5} texts" for number in range(1000)],
        "list": [[number % 7] * 2 for number in range(1000)],
    }
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    content = sink.getvalue()
    metadata = pq.ParquetFile(sink).metadata
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(3)):
            start = column.dictionary_page_offset or column.data_page_offset
            stop = start + column.total_compressed_size
            decoded, values = decoding.page_totals(content, start, stop)
            headers = column.total_uncompressed_size - decoded
            assert 0 < headers < 200 * (1 + group.num_rows // 50)
            distinct = column.num_values + (column.dictionary_page_offset is not None) * 7
            assert column.num_values <= values <= distinct


def test_the_larger_of_two_sizes_counts():
    """Readers of Thrift differ on a field that is given twice."""
    header = bytes([0x15, 0, 0x15, 20, 0x15, 0, 0x05, 4, 2, 0])  # fields 1, 2, 3 and 2 again
    assert decoding.page_totals(header, 0, len(header)) == (10, 0)
    header = bytes([0x15, 0, 0x15, 2, 0x15, 0, 0x05, 4, 20, 0])
    assert decoding.page_totals(header, 0, len(header)) == (10, 0)


def test_no_changed_byte_of_a_page_raises_anything_else():
    content = pack().encoded("a")
    column = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0).column(0)
    stop = column.dictionary_page_offset + column.total_compressed_size
    refusals = 0
    for place in range(column.dictionary_page_offset, stop):
        for value in (0, 0x15, 0x1C, 0x7F, 0xFF):
            altered = content[:place] + bytes([value]) + content[place + 1 :]
            try:
                decoding.page_totals(altered, column.dictionary_page_offset, stop)
            except ValueError:
                refusals += 1
    assert refusals > 50
    with pytest.raises(ValueError, match="foreign header"):
        decoding.page_totals(b"\x1c" * 10**5, 0, 10**5)
    with pytest.raises(ValueError, match="foreign header"):
        decoding.page_totals(b"\x15" + b"\xff" * 10**5, 0, 10**5)


def parquet(rows: int, audit: str = "a", **columns: str) -> bytes:
    """A score file, in which each text is stored once."""
    number = {"trial": np.int64(1), "member": True, "step": np.int32(1), "score": 0.5}
    table = pa.table({
        name: pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value]))
        for name, value in {"audit": audit, **number, **columns}.items()
    })  # fmt: skip
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", compression_level=19, store_schema=False)
    return sink.getvalue()


BOMB = "x" * (40 * 2**20)


@pytest.mark.parametrize("column", ["audit", "missed"])
def test_a_text_that_is_stored_once_is_not_repeated_for_each_row(column, monkeypatch):
    content = parquet(20, **{column: BOMB})
    assert len(content) < 10_000
    monkeypatch.setattr(pq.ParquetFile, "read", None)  # which would decode it
    with pytest.raises(StrangeFileError, match="decoded bytes, more than the 1,089,536"):
        scores.decoded(content, scores._schema_of, 20)


def test_short_texts_count_as_often_as_they_are_repeated():
    content = parquet(10_000, audit="x" * 10_000)
    assert len(content) < 10_000
    with pytest.raises(StrangeFileError, match=r"it has 100,\d{3},\d{3} decoded bytes"):
        scores.decoded(content, scores._schema_of, 10_000)


def test_a_schema_is_checked_before_any_content(monkeypatch):
    monkeypatch.setattr(pq.ParquetFile, "read", None)
    content = scores.encoded(pa.table({"audit": [BOMB]}))
    for read in (
        lambda: scores.decoded(content, scores._schema_of),
        lambda: scores.decoded(content, lambda names: scores.ESTIMATE_SCHEMA),
        lambda: arrays.decoded(content),
    ):
        with pytest.raises(ValueError, match="its columns are not those of such a file"):
            read()


def test_arrays_decode_to_no_more_than_their_size_allows(monkeypatch):
    content = arrays.encoded({"x": np.zeros(2**20)})
    assert arrays.decoded(content)["x"].shape == (2**20,)
    monkeypatch.setattr(decoding, "FREE", 2**20)
    with pytest.raises(StrangeFileError, match="decoded bytes, more than"):
        arrays.decoded(content)
    content = arrays.encoded({"x": np.zeros(2**20)})
    assert arrays.decoded(content)["x"].shape == (2**20,), "what is written can be read"
