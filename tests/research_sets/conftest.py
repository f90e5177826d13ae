from tests.domains.conftest import places, shared_data, write_images  # noqa: F401
