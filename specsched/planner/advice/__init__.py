"""Settings to type into the engine, and what each is worth.

question   `advise`: traffic, profile and trace in, the document `specsched/advice/1` out
lengths    how many tokens to draft at every batch size
bench      one load, replayed under any setup; differences of two setups with their noise
candidates the policies that engines have, at this traffic
engines    what vLLM, SGLang and TensorRT-LLM do unless told otherwise, and what they can be told
setups     the best setup of one engine, and its default
settings   what each setting is worth
lines      the lines to paste
tables     the files that those lines name
"""

from .question import advise

__all__ = ["advise"]
