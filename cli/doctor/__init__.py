"""`easyscale doctor`: whether training works here, and what to do where it does not.

finding      one line of what it says
software     Python, Keras and its backend, MPI, settings: which are installed
machine      cores, memory, /dev/shm, open files, the clock
host         all of that on one host; the program that runs on another
hosts        whether each host can be reached, and is like the others
trial        ranks that measure what is between them, and train
started      the launcher, as a process that may not hang
report       the text for a bug report
"""
