"""`easyscale doctor`: checks that training works here, and suggests a remedy where it does not.

examination  all checks, in order
finding      one line of the output
software     the installed Python, Keras, backend and MPI; settings
machine      cores, memory, /dev/shm, open files, threads, the clock
host         all checks of one host; also the program that runs on a remote host
hosts        reachability of each host, and equal versions on all hosts
trial        ranks that measure the links between them, and train
started      the launcher as a subprocess with a time-out
report       the text for a bug report
"""
