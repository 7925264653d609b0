"""Inputs of language models that hold keys and values of tokens before, known by their names."""

import re

BESIDE_CACHES = ("use_cache_branch", "cache_position")
"""Inputs of exported decoders that say how a cache is used, and hold none."""
_CACHE = re.compile(r"past_|.*past_key|.*past_value|.*cache", re.IGNORECASE)
_OF_ENCODER = re.compile(r".*encoder|.*cross", re.IGNORECASE)


def is_cache(name: str) -> bool:
    """Tell from its name whether an input holds a key-value cache.

    Example:
        >>> is_cache("past_key_values.0.key"), is_cache("cache_v_3"), is_cache("input_ids")
        (True, True, False)
        >>> is_cache("use_cache_branch")
        False
    """
    return name not in BESIDE_CACHES and _CACHE.match(name) is not None


def starts_empty(name: str) -> bool:
    """Tell from its name whether an input is a cache that is empty before the first token.

    Keys and values of an encoder are not: they are computed once, for all of its tokens.

    Example:
        >>> starts_empty("past_key_values.0.decoder.key"), starts_empty("past_key_values.0.encoder.key")
        (True, False)
    """
    return is_cache(name) and _OF_ENCODER.match(name.replace("decoder", "")) is None
