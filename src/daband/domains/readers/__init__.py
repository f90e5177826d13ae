"""Read users' data: arrays, tables, logs, image folders and texts.

Start with ``_tables.py`` (``from_table``, ``from_texts``).

- ``_arrays.py``: pairs from arrays (``from_arrays``), and domains over arrays in memory.
- ``_tables.py``: pairs from tables and texts.
- ``_logs.py``: pairs whose source is a log (``from_log``).
- ``_images.py``: pairs from folders of images (``from_images``).
- ``_parquet_log.py``: logs that are larger than memory, read in batches.
- ``_reading.py``: read tables and log files in all formats.
- ``_columns.py``: the roles of columns, and tables of arms.
"""
