"""Files that survive a kill: checkpoints, locks, and the parts that a long job resumes from."""
