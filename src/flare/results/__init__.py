"""Results of sampling: samples with their scores, the files that hold them, and filters by score."""
