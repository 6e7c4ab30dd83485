"""Verbs that write and read launch files, and diagnose measured runs."""
