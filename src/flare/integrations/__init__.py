"""Models and samplers of other libraries; foreign shapes stop here."""
