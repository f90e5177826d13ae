from tests.domains.conftest import places, write_images  # noqa: F401
