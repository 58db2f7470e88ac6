"""What a program may take the library's errors for."""

from __future__ import annotations

import pytest

from sluicemq.protocol import errors


@pytest.mark.parametrize(
    ("kind", "python"), [(errors.TimeoutError, TimeoutError), (errors.BadHeadersError, ValueError)]
)
def test_what_python_has_an_error_for_is_it(kind: type[errors.SluiceError], python: type[Exception]) -> None:
    with pytest.raises(python, match="text"):
        raise kind("text")
    with pytest.raises(errors.SluiceError, match="text"):
        raise kind("text")
