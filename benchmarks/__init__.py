"""What FLARE costs: `make bench` runs every module here and writes docs/performance.md and its evidence."""
