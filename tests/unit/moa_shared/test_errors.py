import grpc
import pytest
from moa_shared import errors
from moa_shared.errors import CATALOGUE, InternalError, MismatchError, MoaError, error_from_code


@pytest.mark.parametrize("cls", CATALOGUE.values(), ids=lambda cls: cls.__name__)
def test_every_error_has_a_status_an_exit_code_and_says_what_to_do(cls: type[MoaError]) -> None:
    assert cls.grpc_status in grpc.StatusCode.__members__
    assert 0 < cls.exit_code < 256
    assert cls.code == "cancelled" or cls.default_hint.endswith(".")


def test_codes_name_one_class_each() -> None:
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, MoaError)]
    assert len(classes) > 10
    assert sorted(cls.code for cls in classes if cls is not MoaError) == sorted(CATALOGUE)


def test_an_error_is_rebuilt_from_what_the_peer_sent() -> None:
    error = error_from_code("mismatch", "The target model does not match.", "Do this.")
    assert isinstance(error, MismatchError)
    assert str(error) == "The target model does not match. Do this."
    assert isinstance(error_from_code("from the future", "m", "h"), InternalError)
