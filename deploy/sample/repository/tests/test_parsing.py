import unittest

from durations import parse


class Parse(unittest.TestCase):
    def test_one_unit(self):
        assert parse("45s") == 45

    def test_several_units_add_up(self):
        assert parse("1h 30m") == 5400

    def test_blanks_and_case_do_not_matter(self):
        assert parse(" 2D1h ") == 176_400


if __name__ == "__main__":
    unittest.main()
