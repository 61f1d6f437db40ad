"""`easyscale bench`: starts the measuring ranks, and reports their results as tables, JSON files and plots."""
