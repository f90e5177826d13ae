"""Read users' data: arrays, tables, logs, image folders, texts and simulators."""
