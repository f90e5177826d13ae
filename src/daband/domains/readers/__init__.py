"""Readers for user data: arrays, tables, logs, image folders, texts and simulators."""
