"""Readers for user data: arrays, tables, image folders, logs, torch data sets, simulators."""
