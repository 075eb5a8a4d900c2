"""Speed and memory beside peers: `make bench` runs every module here and writes docs/performance.md."""
