"""What any room may use: files, children, interrupts, tables, the terminal, checks of arguments. It knows no memory."""
