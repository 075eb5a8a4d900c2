"""Results of sampling: samples with their scores, their files, filters, and comparison with real data."""
