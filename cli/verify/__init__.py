"""`easyscale verify`: runs a script on one process and on several, and compares their recordings.

runs, captured              start the runs, and capture what they write to stderr
recorded, verdict, hints    read the recordings, compare them, and suggest what may be wrong
"""
