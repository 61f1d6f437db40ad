"""Rank side of `easyscale bench` and `easyscale doctor`: models, exchanges and measurements."""
