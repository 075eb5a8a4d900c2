"""Files on disk: atomic checkpoints with checksums, locks, and directories that long jobs resume from."""
