"""What the language server's trace tells: read, summed up, shown."""
