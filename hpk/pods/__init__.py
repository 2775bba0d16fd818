"""The path of a pod: watch, admit, translate, script, submit, observe, status, report.

Read ``worker.py`` first: its ``sync`` is the whole path, and each module beside it is one step.
"""
