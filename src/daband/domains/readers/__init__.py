"""Readers for what users bring: arrays, tables, image folders, logs, torch data sets, simulators."""
