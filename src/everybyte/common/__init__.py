"""Shared tools without any knowledge of memory: files, child processes, interrupts, tables, the terminal, checks of arguments."""
