"""Real bugs of Python packages, solved through HTTP; the hidden tests pass on a clone of the artifact repository."""

import pytest

from libs.testkit.cases import assert_solved
from libs.testkit.product import product


@pytest.mark.parametrize(("name", "form"), [("parse-subseconds", "whole_file"), ("unidiff-spaces-and-binary", "search_replace")])
async def test_a_real_bug_is_solved(name, form, tmp_path, copy_case):
    case = await copy_case(name, tmp_path / "case")
    async with product(tmp_path / "home", f"scripted:{case.script(form)}") as running:
        run_id = await running.solve(case.row["issue"]["id"], case.request())
        await running.wait(run_id)
        await assert_solved(running, case, run_id, tmp_path / "clone")
