"""EasyScale inside of other systems, each in a folder of its own that nothing else imports.

ray         workers on the nodes of a Ray cluster
"""
