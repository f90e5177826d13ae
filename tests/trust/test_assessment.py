"""The numbers of an assessment: rewards that are needed, and how numbers are written."""

from daband.trust._assessment import count_rewards_needed, format_number


def test_rewards_needed_grow_as_the_advantage_shrinks():
    needed = [count_rewards_needed(gain, 0.5, 0.6) for gain in (1000.0, 0.3, 0.1, 0.001)]
    assert needed == [50, 50, 240, 2_400_000]


def test_numbers_are_short():
    assert [format_number(value) for value in (0.31, 12.3456, 1234.5, 0.0)] == [
        "0.310",
        "12.3",
        "1,234",
        "0.000",
    ]
    assert format_number(0.31, with_sign=True) == "+0.310"
    small = (0.0784, 0.00042, -0.0000316, 1e-17)  # rewards may be rare
    assert [format_number(value) for value in small] == ["0.078", "0.00042", "-0.000032", "0.000"]
