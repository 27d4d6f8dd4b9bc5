"""Reports of benchmark clients as runs: AIPerf, GuideLLM, inference-perf, llm-d's benchmark report.

Each is recognised by what is in it. Times are read by the unit that stands beside them; where a tool writes
none, by its documentation, and held against the other times of the file.
"""
