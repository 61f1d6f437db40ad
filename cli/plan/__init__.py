"""`easyscale plan`: predicts how fast many ranks would train, from a cost model instead of measurements."""
