"""What comes out: samples with their scores, the files that hold them, and the filters that users apply."""
